"""Why a job can't go on, in words: the ranks, the first collective that differs, where each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.lanes.virtual_tpu.executor.matching import Mismatch
from harness.lanes.virtual_tpu.executor.programs import Collective
from harness.lanes.virtual_tpu.executor.ranks import MOST_MESSAGE, Execution, Rank
from harness.lanes.virtual_tpu.executor.transfers import End


class Diagnosis:
    """Collects what is known, and says it.

    Args:
        ranks: those that are there; their stacks may come until ``text`` is called.
        waiting: what the ranks' devices are before, one for each rank at the least.
        diverged: where ranks first came from different lines, in words; "" if they did not.
        receiving: what ranks wait for that nobody has sent.
    """

    def __init__(
        self,
        ranks: Mapping[int, Rank],
        waiting: Sequence[Execution],
        diverged: str,
        receiving: Sequence[End] = (),
    ) -> None:
        self._ranks, self._waiting, self._diverged = ranks, waiting, diverged
        self._receiving = receiving
        self._lines: list[str] = []

    def mismatch(self, executions: Sequence[Execution], found: Mismatch) -> Diagnosis:
        """Programs met whose collectives do not match."""
        self._lines.append(
            f"{_names(executions)} run programs whose collectives do not match: at collective "
            f"{found.number + 1}"
        )
        of = {device: one for one in executions for device in one.mine}
        devices = executions[0].devices
        for index, reached in found.reached.items():
            one = of[devices[index]]
            self._lines.append(f"  {_who(one.rank, devices[index])}: {_said(one, reached)}")
        return self._came_from(executions)

    def circle(self, devices: Sequence[int]) -> Diagnosis:
        """Ranks came to programs in another order."""
        concerned = [one for one in self._waiting if set(one.mine) & set(devices)]
        self._lines.append(f"{_names(concerned)} wait for each other, each with another program")
        for one in concerned:
            self._lines.append(
                f"  {_who(one.rank, *one.mine)}: a program over devices {_listed(one.devices)}: "
                f"{_collectives([one])}"
            )
        return self._came_from(concerned)

    def left(self, rank: Rank, execution: Execution) -> Diagnosis:
        """A rank ended that another waits for."""
        self._lines.append(
            f"rank {rank.number} (process {rank.pid}) has ended, and {_names(self._waiting)} "
            f"waits for it in a program over devices {_listed(execution.devices)}: "
            f"{_collectives([execution])}"
        )
        return self._came_from(self._waiting)

    def incomplete(self, devices: Sequence[int], deadline: float) -> Diagnosis:
        """Ranks wait for others in the creation of their clients, as they do in libtpu's."""
        self._lines.append(
            f"the rank of device {_listed(devices)} has never come, and {self._present} waits for "
            f"it in the creation of a client, for {deadline:g} seconds"
        )
        return self

    def unfinished(self, rank: Rank) -> Diagnosis:
        """A rank ended before all had come."""
        self._lines.append(
            f"rank {rank.number} (process {rank.pid}) has ended before all ranks had come, and "
            f"{self._present or 'nobody'} waits in the creation of a client"
        )
        return self

    @property
    def _present(self) -> str:
        return f"rank {_listed(sorted(self._ranks))}" if self._ranks else ""

    def absent(self, deadline: float) -> Diagnosis:
        """Ranks wait for others that do nothing."""
        there = {device for one in self._waiting for device in one.mine}
        missing = {device for one in self._waiting for device in one.devices} - there
        owners = {device: rank for rank in self._ranks.values() for device in rank.devices}
        for device in sorted(missing & set(owners)):
            rank = owners[device]
            state = "is stopped by a signal" if rank.is_stopped else "does nothing"
            self._lines.append(f"{_who(rank, device)} {state}, for {deadline:g} seconds")
        if unknown := sorted(device for device in missing if device not in owners):
            self._lines.append(f"the rank of device {_listed(unknown)} has never come")
        if self._waiting:
            waits = f"{_names(self._waiting)} waits for it: {_collectives(self._waiting)}"
            self._lines.append(waits)
        self._came_from(self._waiting)
        for end in self._receiving:
            self._lines.append(
                f"rank {end.rank.number} receives {end.size} bytes that nobody has sent, for "
                f"{deadline:g} seconds"
            )
            if end.site:
                self._lines.append(f"  rank {end.rank.number} came from {end.site}")
        return self

    def inside(
        self, executions: Sequence[Execution], ended: Sequence[int], deadline: float
    ) -> Diagnosis:
        """A program hangs: some device never comes to a collective of it."""
        owner = {device: e.rank for e in executions for device in e.mine}
        through = [device for device in owner if device in ended]
        others = [device for device in owner if device not in ended]
        self._lines.append(
            f"{_all(owner, others)} hangs in a collective that {_all(owner, through) or 'another'} "
            f"did not come to, for {deadline:g} seconds: branches or loops took another way"
        )
        self._lines.append(f"  the program's collectives: {_collectives(executions)}")
        return self._came_from(executions)

    def broken(self, executions: Sequence[Execution], error: str) -> Diagnosis:
        """A device failed while others wait for it."""
        self._lines.append(f"a program of {_names(executions)} failed on one device: {error}")
        return self._came_from(executions)

    @property
    def reason(self) -> str:
        """All of it but the stacks."""
        told = [*self._lines, *([self._diverged] if self._diverged else [])]
        return "virtual TPU: the job can't go on: " + "\n".join(told)

    def text(self) -> str:
        """All of it, with the stack of each rank that answered, within the size of a message."""
        lines = [self.reason]
        room = (MOST_MESSAGE // 2) // max(1, len(self._ranks))
        for number, rank in sorted(self._ranks.items()):
            stack = (rank.stacks or "").rstrip()[:room] or "  it did not say where it is"
            lines.append(f"rank {number} (process {rank.pid}):\n{stack}")
        return "\n".join(lines)

    def _came_from(self, executions: Sequence[Execution]) -> Diagnosis:
        told = (f"  rank {one.rank.number} came from {one.site}" for one in executions if one.site)
        self._lines += dict.fromkeys(told)
        return self


def _who(rank: Rank, *devices: int) -> str:
    """A rank; and which of its devices, if it has several."""
    of = f", device {_listed(devices)}" if len(rank.devices) > len(devices) else ""
    return f"rank {rank.number}{of}"


def _all(owner: Mapping[int, Rank], devices: Sequence[int]) -> str:
    if any(len(rank.devices) > 1 for rank in owner.values()):
        return f"device {_listed(sorted(devices))}" if devices else ""
    return f"rank {_listed(sorted(owner[d].number for d in devices))}" if devices else ""


def _said(execution: Execution, reached: Collective | None) -> str:
    if reached is None:
        return "the end of its program"
    groups = ", ".join("{" + _listed(group) + "}" for group in reached.groups)
    reduction = f" {reached.reduction}" if reached.reduction else ""
    pairs = "".join(f" {source}->{target}" for source, target in reached.pairs)
    shapes = ", ".join(f"{type_name(of)}{list(shape)}" for of, shape in reached.operand)
    told = execution.program.told(reached)
    return f"{reached.kind}{reduction}{pairs} of {shapes} over {groups} ({told})"


# https://github.com/openxla/xla/blob/main/xla/xla_data.proto, enum PrimitiveType
_TYPES = {
    1: "pred",
    2: "s8",
    3: "s16",
    4: "s32",
    5: "s64",
    6: "u8",
    7: "u16",
    8: "u32",
    9: "u64",
    10: "f16",
    11: "f32",
    12: "f64",
    15: "c64",
    16: "bf16",
    18: "c128",
}


def type_name(number: int) -> str:
    """XLA's name of an element type; of one that is rare, its number."""
    return _TYPES.get(number, f"type {number}")


def _collectives(executions: Sequence[Execution]) -> str:
    named = sorted({e.program.told(c) for e in executions for c in e.program.collectives})
    return "; ".join(named) or "no collective"


def _names(executions: Sequence[Execution]) -> str:
    return "rank " + _listed(sorted({one.rank.number for one in executions}))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
