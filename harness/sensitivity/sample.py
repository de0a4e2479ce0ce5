"""Choose the faults to plant: a sample that a seed decides, spread over areas and operators."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import TypeVar

from harness.sensitivity.fault import STALE, Fault, Recorded

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """Parameters of a sample of all possible faults.

    Attributes:
        seed: decides the choice.
        most: the largest number of faults.
        first: cases that have their turn before others at a place in Python.
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

    Each area and each operator has as many turns as any other while it has places left, and so
    does each case in them. A line of Python is the same place in all cases that execute it: each
    place has its turn, in another case each time. A larger sample of the same seed begins with the
    faults of a smaller one.

    Args:
        areas: the area of each case.
        programs: the programs that each case compiles.
        operators: the names of the operators to use.
        sample: how to choose.
    """
    chance = random.Random(sample.seed)  # noqa: S311 - no secret
    queues = _queues(areas, programs, operators, sample, chance)
    chance.shuffle(queues)
    return [
        replace(fault, number=number) for number, fault in enumerate(spread(queues, sample.most))
    ]


def spread(queues: list[Iterator[T]], most: int) -> list[T]:
    """Return up to ``most`` elements: one of each queue in turn, while it has any left."""
    chosen: list[T] = []
    while queues and len(chosen) < most:
        for queue in list(queues):
            each = next(queue, None)
            if each is None:
                queues.remove(queue)
            elif len(chosen) < most:
                chosen.append(each)
    return chosen


def _queues(
    areas: Mapping[str, str],
    programs: Mapping[str, Sequence[Recorded]],
    operators: Collection[str],
    sample: Sample,
    chance: random.Random,
) -> list[Iterator[Fault]]:
    """Return an iterator over the faults of each area and operator, in the order of their turns."""
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
    return [in_turn(list(by_place.values()), chance) for _, by_place in sorted(turns.items())]


def _faults(
    case: str, programs: Sequence[Recorded], operator: str, chance: random.Random
) -> list[Fault]:
    """Return every fault of one operator in one case, in random order."""
    if operator == STALE:
        faults = [
            Fault(0, case, after.digest, operator, 0, "program", before.digest, after.like)
            for before, after in pairwise(programs)
            if before.signature == after.signature
        ]
    else:
        faults = [
            Fault(0, case, program.digest, operator, place, opcode, like=program.like)
            for program in programs
            for place, opcode in enumerate(program.places.get(operator, ()))
            if opcode
        ]
    chance.shuffle(faults)
    return faults


def in_turn(lists: list[list[T]], chance: random.Random) -> Iterator[T]:
    """Yield one element of each list, the lists in any order, then a second one of each."""
    chance.shuffle(lists)
    for round_ in zip_longest(*lists):
        yield from filter(None, round_)
