"""Choose the few cases that execute most of some modules, in a given time."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from harness.sensitivity.fault import case_file, python_file
from harness.sensitivity.python_calls import called
from harness.sensitivity.runs import Request
from harness.sensitivity.whole_modules import Place, every_slip

# What each further case at a place is worth, of the one before: none sees every slip there, and
# what the first one misses the next ones mostly miss, too.
_NEXT = 0.5


def executed_places(request: Request, cases: Iterable[str]) -> dict[str, set[Place]]:
    """Return the places that each case executed in the run without a fault."""
    at_line: defaultdict[tuple[str, int], set[Place]] = defaultdict(set)
    for of_module in every_slip(request.modules, request.operators):
        for slip in of_module:
            for line in slip.lines:
                at_line[slip.module, line].add(slip.place)
    programs = request.folder / "programs"
    executed: dict[str, set[Place]] = {}
    for case in cases:
        by_module = called(python_file(case_file(programs, case)))
        lines = {(module, line) for module, own in by_module.items() for line in own}
        executed[case] = set().union(*(at_line[line] for line in lines & at_line.keys()))
    return executed


def quickest(
    executed: Mapping[str, Collection[Place]],
    cost: Mapping[str, float],
    seconds: float,
    given: Collection[str] = (),
) -> list[str]:
    """Choose cases that take up to so many seconds, one after the other, besides those given.

    The case that is worth most for its cost comes first. What it is worth is decided by the places
    that it executes and that few of the chosen ones execute, so what was seen of a sample of slips
    decides nothing. Each module counts as much as any other.

    Args:
        executed: the places that each case executes.
        cost: how long each case takes, in seconds.
        seconds: how long the chosen ones may take together.
        given: cases that run anyway; they are among the result.
    """
    sizes = Counter(_module(place) for place in set().union(*executed.values()))
    worth: dict[Place, float] = {
        place: 1 / sizes[_module(place)] for places in executed.values() for place in places
    }
    chosen = sorted(given)
    for case in chosen:
        _execute(worth, executed.get(case, ()))

    def value(case: str) -> float:
        return sum(worth[place] for place in executed[case]) / max(cost[case], 0.01)

    # No case is worth more than it was before another was chosen: most need not be asked again.
    left = [(-value(case), case) for case in sorted(executed.keys() - set(given))]
    heapq.heapify(left)
    while left:
        before, case = heapq.heappop(left)
        if not before or cost[case] > seconds:
            continue
        if (now := -value(case)) > before:
            heapq.heappush(left, (now, case))
            continue
        _execute(worth, executed[case])
        seconds -= cost[case]
        chosen.append(case)
    return chosen


def _module(place: Place) -> str:
    return place[0].partition(":")[0]


def _execute(worth: dict[Place, float], places: Collection[Place]) -> None:
    for place in places:
        worth[place] *= _NEXT
