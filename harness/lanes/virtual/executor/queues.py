"""Queues of a job's devices: which programs may run, and which never will."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from harness.lanes.virtual.executor.connected_ranks import Execution, Rank


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
            self._of[device] = deque(execution for execution in queue if execution.rank is not rank)

    def clear(self) -> None:
        """Remove everything."""
        self._of.clear()

    def first(self, device: int) -> Execution | None:
        """Return the first execution in the device's queue, or None."""
        queue = self._of.get(device)
        return queue[0] if queue else None

    def waiting(self) -> list[Execution]:
        """Return the first execution of each device's queue, without duplicates."""
        return list(dict.fromkeys([queue[0] for queue in self._of.values() if queue]))

    def awaited(self, running: Collection[int]) -> set[int]:
        """Return the devices that others wait for though they have nothing to do."""
        others = {device for execution in self.waiting() for device in execution.devices}
        return {d for d in others if d not in running and self.first(d) is None}

    def ready(self) -> list[Execution]:
        """Return executions of one program that is first on all of its devices; [] if none is."""
        for devices in dict.fromkeys([queue[0].devices for queue in self._of.values() if queue]):
            firsts = [first for device in devices if (first := self.first(device)) is not None]
            if len(firsts) == len(devices) and all(self._is_first(e, devices) for e in firsts):
                return list(dict.fromkeys(firsts))
        return []

    def stuck(self, running: Collection[int]) -> list[int]:
        """Devices that wait for each other, each before another program, for ever.

        Nothing may be ready. A device waits for ever when all devices of the program that it is
        before do so too; one that is running, or has nothing queued, may still come.
        """
        waiting = {
            device: frozenset(queue[0].devices)
            for device, queue in self._of.items()
            if queue and device not in running
        }
        while lucky := [
            execution for execution, devices in waiting.items() if not devices <= waiting.keys()
        ]:
            for device in lucky:
                del waiting[device]
        return sorted(waiting)

    def _is_first(self, execution: Execution, devices: tuple[int, ...]) -> bool:
        return execution.devices == devices and all(
            self.first(device) is execution for device in execution.mine
        )
