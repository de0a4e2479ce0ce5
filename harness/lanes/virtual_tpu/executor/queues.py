"""What is queued on each device of a job: which programs may run, and which never will."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from harness.lanes.virtual_tpu.executor.ranks import Execution, Rank


class Queues:
    """A queue for each device, by its id. As on hardware, a device runs what it has in order."""

    def __init__(self) -> None:
        self._of: dict[int, deque[Execution]] = {}

    def add(self, execution: Execution) -> None:
        """Queue it on each device that its rank runs it on."""
        for device in execution.mine:
            self._of.setdefault(device, deque()).append(execution)

    def take(self, executions: Sequence[Execution]) -> None:
        """Remove executions, each the first one of its devices."""
        for execution in executions:
            for device in execution.mine:
                self._of[device].popleft()

    def remove(self, rank: Rank) -> None:
        """Remove all that the rank has queued."""
        for device, queue in self._of.items():
            self._of[device] = deque(one for one in queue if one.rank is not rank)

    def clear(self) -> None:
        """Remove everything."""
        self._of.clear()

    def first(self, device: int) -> Execution | None:
        """What the device is before; None if nothing is queued on it."""
        queue = self._of.get(device)
        return queue[0] if queue else None

    def waiting(self) -> list[Execution]:
        """All that devices are before, each once."""
        return list(dict.fromkeys(queue[0] for queue in self._of.values() if queue))

    def ready(self) -> list[Execution]:
        """Executions of one program that all of its devices are before; [] if there is none."""
        for one in self.waiting():
            if all(self._is_first(self.first(device), one.devices) for device in one.devices):
                return list(dict.fromkeys(self._of[device][0] for device in one.devices))
        return []

    def stuck(self, running: Collection[int]) -> list[int]:
        """Devices that wait for each other, each before another program, for ever.

        Nothing may be ready. A device waits for ever when all devices of the program that it is
        before do so too; one that is running, or has nothing queued, may still come.
        """
        waiting = {device for device in self._of if self.first(device)} - set(running)
        while lucky := [device for device in waiting if not self._devices(device) <= waiting]:
            waiting.difference_update(lucky)
        return sorted(waiting)

    def _devices(self, device: int) -> set[int]:
        first = self.first(device)
        return set(first.devices) if first else set()

    def _is_first(self, execution: Execution | None, devices: tuple[int, ...]) -> bool:
        return (
            execution is not None
            and execution.devices == devices
            and all(self.first(device) is execution for device in execution.mine)
        )
