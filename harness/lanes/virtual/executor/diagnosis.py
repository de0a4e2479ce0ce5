"""Explain why a job can't go on: name the culprit, and the first collective that differs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from harness.lanes.virtual import in_own_words
from harness.lanes.virtual.executor.connected_ranks import Execution, Rank
from harness.lanes.virtual.executor.folding import (
    devices_named,
    grouped,
    listed,
    odd_ones,
    ranks_named,
    verb,
)
from harness.lanes.virtual.executor.matching import Mismatch
from harness.lanes.virtual.executor.meeting_history import MeetingHistory
from harness.lanes.virtual.executor.processes import rank_of
from harness.lanes.virtual.executor.programs import ProgramCollective
from harness.lanes.virtual.executor.transfers import End


class Diagnosis:
    """Collects what is known, and says it.

    Args:
        ranks: those that are there.
        left: those that have ended.
        waiting: what the ranks' devices are before, one for each rank at the least.
        history: what ranks have come to.
        receiving: what ranks wait for that nobody has sent.

    Attributes:
        culprits: the ranks that keep the others from going on, as far as one can tell.
    """

    def __init__(
        self,
        ranks: Mapping[int, Rank],
        left: Mapping[int, Rank],
        waiting: Sequence[Execution],
        history: MeetingHistory,
        receiving: Sequence[End] = (),
    ) -> None:
        self._ranks, self._left, self._waiting = ranks, left, waiting
        self._history, self._receiving = history, receiving
        self._lines: list[str] = []
        self.culprits: list[int] = []

    @property
    def _waiters(self) -> list[int]:
        return sorted({execution.rank.number for execution in self._waiting})

    def mismatch(self, executions: Sequence[Execution], difference: Mismatch) -> Diagnosis:
        """Programs met whose collectives do not match."""
        of = {device: execution for execution in executions for device in execution.mine}
        devices = executions[0].devices
        texts = {
            devices[index]: _described(of[devices[index]], collective)
            for index, collective in difference.reached.items()
        }
        numbers = sorted({execution.rank.number for execution in executions})
        reached = {
            devices[index]: (collective.key, collective.groups, collective.pairs)
            if collective is not None
            else None
            for index, collective in difference.reached.items()
        }
        odd = self._blame(of, reached)
        at = f"at collective {difference.number + 1} of program {self._history.met_by(numbers)}"
        if odd:
            others = [device for device in of if device not in odd]
            self._lines.append(
                f"{_who(of, odd)} {verb(odd, 'runs', 'run')} a program whose collectives do not "
                f"match those of {_who(of, others)}, {at}"
            )
        else:
            self._lines.append(
                f"{_who(of, list(of))} run programs whose collectives do not match, {at}"
            )
        self._lines += [f"  {_who(of, on)}: {text}" for text, on in grouped(texts).items()]
        return self._came_from(executions)

    def circle(self, devices: Sequence[int]) -> Diagnosis:
        """Ranks came to programs in another order."""
        concerned = [execution for execution in self._waiting if set(execution.mine) & set(devices)]
        of = {device: execution for execution in concerned for device in execution.mine}
        texts = {
            device: f"a program over {devices_named(each.devices)}: {_collectives([each])}"
            for device, each in of.items()
        }
        odd = self._blame(of, {device: execution.devices for device, execution in of.items()})
        others = [device for device in of if device not in odd]
        order = (
            f"{_who(of, odd)} {verb(odd, 'comes', 'come')} to programs in another order than "
            f"{_who(of, others)}: "
            if odd
            else f"{_who(of, others)} come to programs in different orders: "
        )
        self._lines.append(f"{order}they wait for each other, each with another program")
        self._lines += [f"  {_who(of, on)}: {text}" for text, on in grouped(texts).items()]
        return self._came_from(concerned)

    def left(self, execution: Execution) -> Diagnosis:
        """Ranks have ended that others wait for, as in this execution."""
        owners = {device for rank in self._ranks.values() for device in rank.devices}
        gone = {
            rank.number: rank
            for rank in self._left.values()
            if set(rank.devices) & set(execution.devices) - owners
        }
        pids = f"process{'es' * (len(gone) > 1)} {listed(rank.pid for rank in gone.values())}"
        ended = f"{ranks_named(gone)} ({pids}) {verb(gone, 'has', 'have')} ended"
        where = f"a program over {devices_named(execution.devices)}: {_collectives([execution])}"
        waiters = self._waiters
        if len(gone) > len(waiters):  # most agree that this was all
            self.culprits = waiters
            self._lines.append(
                f"{ranks_named(waiters)} {verb(waiters, 'waits', 'wait')} in {where}, and {ended}"
            )
        else:
            self.culprits = sorted(gone)
            self._lines.append(
                f"{ended}, and {ranks_named(waiters)} {verb(waiters, 'waits', 'wait')} for "
                f"{verb(gone, 'it', 'them')} in {where}"
            )
        return self._came_from(self._waiting)

    def incomplete(
        self, devices: Sequence[int], processes: Sequence[int], deadline: float
    ) -> Diagnosis:
        """Ranks wait for others in the creation of their clients, as they do in libtpu's.

        Args:
            devices: those whose rank has not come.
            processes: those of the job that are no ranks.
            deadline: in seconds.
        """
        named = {rank: pid for pid in processes if (rank := rank_of(pid))}
        late = {int(r): pid for r, pid in named.items() if r.isdecimal()}
        late = {number: pid for number, pid in late.items() if number not in self._ranks}
        each = max((len(rank.devices) for rank in self._ranks.values()), default=1)
        count = len(self._ranks) + len(devices) // each
        if late:
            self.culprits = sorted(late)
            who = f"{ranks_named(late)} (process{'es' * (len(late) > 1)} {listed(late.values())})"
        else:
            who = f"the rank of {devices_named(devices)}"
        self._lines.append(
            f"{who} {verb(late or [0], 'has', 'have')} never come, and {self._present} "
            f"{verb(self._ranks, 'waits', 'wait')} for it in the creation of a client, for "
            f"{deadline:g} s: {len(self._ranks)} of {count} processes have created theirs"
        )
        self._lines.append(
            f"  the job has {len(devices) + sum(len(r.devices) for r in self._ranks.values())} "
            f"devices, {each} for each process: it takes {count} processes"
        )
        return self

    def unfinished(self, rank: Rank) -> Diagnosis:
        """Explain that a rank ended before all had come."""
        self.culprits = [rank.number]
        self._lines.append(
            f"rank {rank.number} (process {rank.pid}) has ended before all ranks had come, and "
            f"{self._present or 'nobody'} {verb(self._ranks or [0], 'waits', 'wait')} in the "
            "creation of a client"
        )
        return self

    @property
    def _present(self) -> str:
        return ranks_named(self._ranks) if self._ranks else ""

    def absent(self, devices: Collection[int], deadline: float) -> Diagnosis:
        """Ranks wait for others that do nothing, those of these devices."""
        waiters = self._waiters or sorted({end.rank.number for end in self._receiving})
        stopped = [number for number, rank in sorted(self._ranks.items()) if rank.is_stopped]
        owners = {d: rank.number for rank in self._ranks.values() for d in rank.devices}
        idle = sorted({owners[device] for device in devices if device in owners} - set(stopped))
        who, late = ranks_named(idle), list(idle)
        if set(idle) & set(waiters):  # some of its devices wait for others of them
            who, late = f"{devices_named(devices)} of {who}", sorted(devices)
        waits = f"{ranks_named(waiters)} {verb(waiters, 'waits', 'wait')}"
        programs = f": {_collectives(self._waiting)}" if self._waiting else ""
        if stopped:
            self.culprits = stopped
            self._lines.append(
                f"{ranks_named(stopped)} {verb(stopped, 'is', 'are')} stopped by a signal, for "
                f"{deadline:g} s, and {waits} for {verb(stopped, 'it', 'them')}{programs}"
            )
        elif idle and len(idle) <= len(waiters):
            self.culprits = idle
            self._lines.append(
                f"{who} {verb(late, 'does', 'do')} nothing, for {deadline:g} s, and "
                f"{waits} for {verb(idle, 'it', 'them')}{programs}"
            )
        elif idle:
            self.culprits = waiters
            self._lines.append(
                f"{waits} in a program that {who} {verb(late, 'does', 'do')} not come "
                f"to, for {deadline:g} s{programs}"
            )
        else:
            self._lines.append(f"{waits} for what nobody has sent, for {deadline:g} s{programs}")
        for end in self._receiving:
            self._lines.append(
                f"rank {end.rank.number} receives {end.size} bytes that nobody has sent"
            )
            if end.site:
                self._lines.append(f"  rank {end.rank.number} came from {end.site}")
        return self._came_from(self._waiting)

    def inside(
        self, executions: Sequence[Execution], ended: Sequence[int], deadline: float
    ) -> Diagnosis:
        """Explain that a program hangs: some device never comes to one of its collectives."""
        of = {device: execution for execution in executions for device in execution.mine}
        through = [device for device in of if device in ended]
        hanging = [device for device in of if device not in ended]
        odd = through if len(through) <= len(hanging) else hanging
        self.culprits = sorted({of[device].rank.number for device in odd})
        if not through:
            first = f"{_who(of, hanging)} hang in collectives that not all come to"
        elif odd is through:
            first = (
                f"{_who(of, through)} did not come to a collective that {_who(of, hanging)} "
                f"{verb(hanging, 'hangs', 'hang')} in"
            )
        else:
            first = (
                f"{_who(of, hanging)} {verb(hanging, 'hangs', 'hang')} in a collective that "
                f"{_who(of, through)} did not come to"
            )
        self._lines.append(f"{first}, for {deadline:g} s: branches or loops took another way")
        self._lines.append(f"  the program's collectives: {_collectives(executions)}")
        return self._came_from(executions)

    def in_host(
        self, ranks: Sequence[int], executions: Sequence[Execution], deadline: float
    ) -> Diagnosis:
        """Explain that a program waits for functions of these ranks' hosts, which do nothing."""
        self.culprits = list(ranks)
        stopped = [number for number in ranks if self._ranks[number].is_stopped]
        others = sorted({execution.rank.number for execution in executions} - set(ranks))
        does = (
            f"{verb(ranks, 'is', 'are')} stopped by a signal"
            if stopped
            else f"{verb(ranks, 'does', 'do')} nothing"
        )
        waits = f", and {ranks_named(others)} {verb(others, 'waits', 'wait')}" if others else ""
        self._lines.append(
            f"{ranks_named(ranks)} {does} in a callback of a running program, for {deadline:g} s"
            f"{waits}: {_collectives(executions)}"
        )
        return self._came_from(executions)

    def broken(self, executions: Sequence[Execution], device: int, error: str) -> Diagnosis:
        """Explain that a device failed while others wait for it."""
        of = {device: execution for execution in executions for device in execution.mine}
        self.culprits = [of[device].rank.number]
        numbers = sorted({execution.rank.number for execution in executions})
        cause, *more = _cause_first(error)
        self._lines.append(
            f"{_who(of, [device])} failed in a program of {ranks_named(numbers)}: {cause}"
        )
        self._lines += [f"  {line}" for line in more]
        return self._came_from(executions)

    @property
    def reason(self) -> str:
        """The diagnosis without the stacks."""
        lines = "\n".join([*self._lines, *self._history.parted])
        return in_own_words(f"the job can't go on: {lines}")

    def _blame(self, of: Mapping[int, Execution], keys: Mapping[int, Hashable]) -> list[int]:
        """Return the devices that differ from most, and note their ranks as the culprits."""
        odd = odd_ones(keys)
        self.culprits = sorted({of[device].rank.number for device in odd})
        return odd

    def _came_from(self, executions: Sequence[Execution]) -> Diagnosis:
        sites = {
            execution.rank.number: execution.site for execution in executions if execution.site
        }
        self._lines += [
            f"  {ranks_named(ranks)} came from {site}" for site, ranks in grouped(sites).items()
        ]
        return self


def _cause_first(error: str) -> list[str]:
    """Return an error's lines; one of Python, as of a callback, says at its end what is wrong."""
    lines = error.rstrip().splitlines() or [""]
    return [lines[-1], *lines] if "Traceback (most recent call last)" in error else lines


def _who(of: Mapping[int, Execution], devices: Collection[int]) -> str:
    """Return the ranks of devices; the devices, if ranks have several."""
    if any(len(execution.rank.devices) > 1 for execution in of.values()):
        numbers = [of[device].rank.number for device in devices]
        return f"{devices_named(devices)} of {ranks_named(numbers)}"
    return ranks_named([of[device].rank.number for device in devices])


def _described(execution: Execution, reached: ProgramCollective | None) -> str:
    if reached is None:
        return "the end of its program"
    groups = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in reached.groups)
    reduction = f" {reached.reduction}" if reached.reduction else ""
    pairs = "".join(f" {source}->{target}" for source, target in reached.pairs)
    shapes = ", ".join(f"{type_name(of)}{list(shape)}" for of, shape in reached.operand)
    collective = execution.program.label(reached)
    return f"{reached.kind}{reduction}{pairs} of {shapes} over {groups} ({collective})"


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
    named = sorted({e.program.label(c) for e in executions for c in e.program.collectives})
    return "; ".join(named) or "no collective"
