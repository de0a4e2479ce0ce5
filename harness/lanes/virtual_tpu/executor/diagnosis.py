"""Why a job can't go on, in words: the ranks, the first collective that differs, where each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.lanes.virtual_tpu.executor.matching import Mismatch
from harness.lanes.virtual_tpu.executor.programs import Collective
from harness.lanes.virtual_tpu.executor.ranks import Execution, Rank


class Diagnosis:
    """Collects what is known, and says it.

    Args:
        ranks: those that are there.
        left: those that have gone, and as which process.
        waiting: what the ranks' devices are before, one for each rank at the least.
        history: for each program that ran, oldest first, each rank and the line it came from.
    """

    def __init__(
        self,
        ranks: Mapping[int, Rank],
        left: Mapping[int, str],
        waiting: Sequence[Execution],
        history: Sequence[Sequence[tuple[int, str]]],
    ) -> None:
        self._ranks, self._left, self._waiting = ranks, left, waiting
        self._history = history
        self._lines: list[str] = []

    def mismatch(self, executions: Sequence[Execution], found: Mismatch) -> Diagnosis:
        """Programs met whose collectives do not match."""
        self._lines.append(
            f"{_names(executions)} run programs whose collectives do not match: at collective "
            f"{found.number + 1}"
        )
        owner = {device: e.rank.number for e in executions for device in e.mine}
        devices = executions[0].devices
        for index, reached in found.reached.items():
            self._lines.append(f"  rank {owner[devices[index]]}: {_said(reached)}")
        self._came_from(executions)
        return self

    def circle(self, devices: Sequence[int]) -> Diagnosis:
        """Ranks came to programs in another order."""
        concerned = [one for one in self._waiting if set(one.mine) & set(devices)]
        self._lines.append(f"{_names(concerned)} wait for each other, each with another program")
        self._came_from(concerned)
        return self

    def left(self, rank: Rank, execution: Execution) -> Diagnosis:
        """A rank ended that another waits for."""
        self._lines.append(
            f"rank {rank.number} (process {rank.pid}) has ended, and {_names(self._waiting)} "
            f"wait for it in a program over devices {_listed(execution.devices)}"
        )
        self._came_from(self._waiting)
        return self

    def absent(self, deadline: float) -> Diagnosis:
        """Ranks wait for others that do nothing."""
        missing = sorted(
            {
                device
                for one in self._waiting
                for device in one.devices
                if not any(device in other.mine for other in self._waiting)
            }
        )
        owners = {device: rank for rank in self._ranks.values() for device in rank.devices}
        for number in sorted({owners[d].number for d in missing if d in owners}):
            state = "is stopped by a signal" if self._ranks[number].is_stopped else "does nothing"
            self._lines.append(f"rank {number} {state}, for {deadline:g} seconds")
        if unknown := [device for device in missing if device not in owners]:
            self._lines.append(f"the rank of device {_listed(unknown)} has never come")
        self._lines.append(f"{_names(self._waiting)} wait for it")
        self._came_from(self._waiting)
        return self

    def inside(
        self, executions: Sequence[Execution], ended: Sequence[int], deadline: float
    ) -> Diagnosis:
        """A program hangs: some device never comes to a collective of it."""
        owner = {device: e.rank.number for e in executions for device in e.mine}
        through = sorted({owner[device] for device in ended})
        others = sorted(set(owner.values()) - set(through))
        self._lines.append(
            f"rank {_listed(others)} hang in a collective that rank {_listed(through) or 'none'} "
            f"did not come to, for {deadline:g} seconds: branches or loops took another way"
        )
        named = sorted({c.name for e in executions for c in e.program.collectives})
        self._lines.append(f"  the program's collectives: {', '.join(named)}")
        self._came_from(executions)
        return self

    def text(self) -> str:
        """All of it, with the stack of each rank that answered."""
        self._diverged()
        for number, rank in sorted(self._ranks.items()):
            stack = rank.stacks.rstrip() or "  it did not say where it is"
            self._lines.append(f"rank {number} (process {rank.pid}):\n{stack}")
        return "virtual TPU: the job can't go on: " + "\n".join(self._lines)

    def _came_from(self, executions: Sequence[Execution]) -> None:
        for one in executions:
            if one.site:
                self._lines.append(f"  rank {one.rank.number} came from {one.site}")

    def _diverged(self) -> None:
        for number, came in enumerate(self._history):
            sites: dict[str, list[int]] = {}
            for rank, site in came:
                sites.setdefault(site, []).append(rank)
            if len(sites) > 1 and "" not in sites:
                told = "; ".join(f"rank {_listed(r)} from {site}" for site, r in sites.items())
                before = len(self._history) - number
                self._lines.append(f"ranks first came from different lines {before} before: {told}")
                return


def _said(reached: Collective | None) -> str:
    if reached is None:
        return "the end of its program"
    groups = ", ".join("{" + _listed(group) + "}" for group in reached.groups)
    reduction = f" {reached.reduction}" if reached.reduction else ""
    shapes = ", ".join(str(list(shape)) for _, shape in reached.operand)
    return f"{reached.kind}{reduction} of {shapes} over {groups} ({reached.name})"


def _names(executions: Sequence[Execution]) -> str:
    return "rank " + _listed(sorted({one.rank.number for one in executions}))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
