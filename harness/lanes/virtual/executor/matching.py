"""Check whether programs that wait for each other can complete all their collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.lanes.virtual.executor.programs import ProgramCollective, RankProgram


@dataclass(frozen=True)
class Mismatch:
    """Point at which devices stop: each has reached a different collective or its program's end.

    Attributes:
        reached: the collective that each device waits in; None for one that has ended.
        number: how many each device had passed before, at the least.
    """

    reached: Mapping[int, ProgramCollective | None]
    number: int


def mismatch(programs: Sequence[RankProgram]) -> Mismatch | None:
    """Return where the programs, one for each device by index, stop for ever; None if they don't.

    Loops and branches are not followed: what is in them is taken as reached once.
    """
    queues = [
        [collective for collective in program.collectives if collective.group_of(index)]
        for index, program in enumerate(programs)
    ]
    at = [0] * len(queues)

    def head(index: int) -> ProgramCollective | None:
        return queues[index][at[index]] if at[index] < len(queues[index]) else None

    moved = True
    while moved:
        moved = False
        for index in range(len(queues)):
            collective = head(index)
            if collective is None:
                continue
            group = collective.group_of(index)
            heads = {peer: head(peer) for peer in group}
            if all(_meets(collective, group, heads[peer], peer) for peer in group) and _pairs_up(
                heads
            ):
                for peer in group:
                    at[peer] += 1
                moved = True
    stuck = [index for index in range(len(queues)) if head(index) is not None]
    if not stuck:
        return None
    first = min(at[index] for index in stuck)
    concerned = sorted({peer for index in stuck for peer in _group(head(index), index)})
    return Mismatch({index: head(index) for index in concerned}, first)


def _group(collective: ProgramCollective | None, index: int) -> tuple[int, ...]:
    return () if collective is None else collective.group_of(index)


def _meets(
    collective: ProgramCollective,
    group: tuple[int, ...],
    other: ProgramCollective | None,
    peer: int,
) -> bool:
    return other is not None and other.key == collective.key and other.group_of(peer) == group


def _pairs_up(group: Mapping[int, ProgramCollective | None]) -> bool:
    """Return whether both ends of each pair in a collective-permute list the pair.

    Their programs may list other pairs, as those of send and recv do, which only two ranks know of:
    https://github.com/pytorch/xla/blob/v2.9.0/test/pjrt/test_collective_ops_tpu.py
    """
    known = [
        {*collective.pairs} if collective is not None else set() for collective in group.values()
    ]
    return all(
        (source, target) in known[source] and (source, target) in known[target]
        for position, pairs in enumerate(known)
        for source, target in pairs
        if position in (source, target)
    )
