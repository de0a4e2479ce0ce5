"""Which faults to plant: a sample that a seed decides, spread over areas and operators."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from harness.sensitivity.fault import STALE, Fault, Recorded


def planned(
    areas: Mapping[str, str],
    programs: Mapping[str, Sequence[Recorded]],
    operators: Collection[str],
    *,
    seed: int,
    most: int,
) -> list[Fault]:
    """At most ``most`` faults, each in one program of one case.

    Each area and each operator has its turn as often as any other, for as long as it has places
    left. Of one seed more faults begin with the same ones.

    Args:
        areas: of each case.
        programs: what each case compiles.
        operators: the names of those to use.
        seed: another one chooses other faults.
        most: how many.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    turns: dict[tuple[str, str], list[Iterator[Fault]]] = defaultdict(list)
    for case in sorted(programs):
        for operator in operators:
            if faults := _faults(case, programs[case], operator, chance):
                turns[areas[case], operator].append(iter(faults))
    queues = [_in_turn(cases, chance) for _, cases in sorted(turns.items())]
    chance.shuffle(queues)
    chosen: list[Fault] = []
    while queues and len(chosen) < most:
        for queue in list(queues):
            fault = next(queue, None)
            if fault is None:
                queues.remove(queue)
            elif len(chosen) < most:
                chosen.append(fault)
    return [replace(fault, number=number) for number, fault in enumerate(chosen)]


def _faults(
    case: str, programs: Sequence[Recorded], operator: str, chance: random.Random
) -> list[Fault]:
    """All of one operator in one case, in any order."""
    if operator == STALE:
        found = [
            Fault(0, case, after.digest, operator, 0, "program", before.digest, after.like)
            for before, after in pairwise(programs)
            if before.signature == after.signature
        ]
    else:
        found = [
            Fault(0, case, program.digest, operator, place, opcode, like=program.like)
            for program in programs
            for place, opcode in enumerate(program.places.get(operator, ()))
            if opcode
        ]
    chance.shuffle(found)
    return found


def _in_turn(cases: list[Iterator[Fault]], chance: random.Random) -> Iterator[Fault]:
    """One fault of each case, in any order, then a second one of each."""
    chance.shuffle(cases)
    while cases:
        for case in list(cases):
            fault = next(case, None)
            if fault is None:
                cases.remove(case)
            else:
                yield fault
