"""Which faults to plant: a sample that a seed decides, spread over areas and operators."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from harness.sensitivity.fault import STALE, Fault, Recorded


@dataclass(frozen=True)
class Sample:
    """Which faults of all that are possible.

    Attributes:
        seed: another one chooses other faults.
        most: how many.
        first: the cases that are asked before others at a place of Python.
    """

    seed: int
    most: int
    first: Collection[str] = ()


def planned(
    areas: Mapping[str, str],
    programs: Mapping[str, Sequence[Recorded]],
    operators: Collection[str],
    sample: Sample,
) -> list[Fault]:
    """Return the sample of the faults, each in one program of one case.

    Each area and each operator has its turn as often as any other, for as long as it has places
    left, and within them each case. A line of Python is the same place in all cases that execute
    it: each place has its turn, in another case each time. Of one seed more faults begin with the
    same ones.

    Args:
        areas: of each case.
        programs: what each case compiles.
        operators: the names of those to use.
        sample: which of them.
    """
    chance = random.Random(sample.seed)  # noqa: S311 - no secret
    queues = _queues(areas, programs, operators, sample, chance)
    chance.shuffle(queues)
    chosen: list[Fault] = []
    while queues and len(chosen) < sample.most:
        for queue in list(queues):
            fault = next(queue, None)
            if fault is None:
                queues.remove(queue)
            elif len(chosen) < sample.most:
                chosen.append(fault)
    return [replace(fault, number=number) for number, fault in enumerate(chosen)]


def _queues(
    areas: Mapping[str, str],
    programs: Mapping[str, Sequence[Recorded]],
    operators: Collection[str],
    sample: Sample,
    chance: random.Random,
) -> list[Iterator[Fault]]:
    """Return the faults of each area and operator in the order in which they have their turns."""
    turns: dict[tuple[str, str], dict[Hashable, list[Fault]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for case in sorted(programs):
        for operator in operators:
            for fault in _faults(case, programs[case], operator, chance):
                of = fault.where if fault.in_python else case
                turns[areas[case], operator][of].append(fault)
    for alike in (faults for by_place in turns.values() for faults in by_place.values()):
        if alike[0].in_python:
            chance.shuffle(alike)
            alike.sort(key=lambda fault: fault.case not in sample.first)
    return [_in_turn(list(by_place.values()), chance) for _, by_place in sorted(turns.items())]


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


def _in_turn(lists: list[list[Fault]], chance: random.Random) -> Iterator[Fault]:
    """Yield one fault of each list, the lists in any order, then a second one of each."""
    chance.shuffle(lists)
    for round_ in zip_longest(*lists):
        yield from filter(None, round_)
