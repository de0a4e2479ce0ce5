"""The stack that broke a case, or fixed it, in the fewest runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from harness.errors import BadInputError


class StackState(StrEnum):
    """State of a stack, by the outcome of the bisected case on it."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "not measured"


@dataclass(frozen=True)
class TurningPoint:
    """The neighbours between which the answer changes; ``between`` could not be measured."""

    good: str
    bad: str
    between: tuple[str, ...]
    answers: Mapping[str, StackState]  # of every stack that was asked, in the stacks' order
    changes: int  # between answers next to each other, from the good end on: 1 is monotonic


def bisect(
    names: Sequence[str], ask: Callable[[str], StackState], *, every: bool = False
) -> TurningPoint:
    """Find where ``names``, from a good one to a bad one, change their answer.

    Both ends are asked first, then the middle of what is left; one that can't be measured is
    passed over for its nearest neighbour. ``every`` asks all: only then is it sure that the
    answer changes once.

    Raises BadInputError when the good end is not good or the bad one not bad.
    """
    answers: dict[str, StackState] = {}

    def answer(index: int) -> StackState:
        name = names[index]
        if name not in answers:
            answers[name] = ask(name)
        return answers[name]

    low, high = 0, len(names) - 1
    for index, wanted in ((low, StackState.GOOD), (high, StackState.BAD)):
        if answer(index) != wanted:
            raise BadInputError(f"{names[index]} is {answer(index)}: expected it to be {wanted}")
    while (middle := _next(low, high, answer)) is not None:
        low, high = (middle, high) if answer(middle) == StackState.GOOD else (low, middle)
    if every:
        for index in range(len(names)):
            answer(index)
    known = {name: answers[name] for name in names if name in answers}
    return TurningPoint(
        good=names[low],
        bad=names[high],
        between=tuple(names[low + 1 : high]),
        answers=known,
        changes=_changes(list(known.values())),
    )


def _next(low: int, high: int, answer: Callable[[int], StackState]) -> int | None:
    """Return the measurable index nearest to the middle of what is left."""
    middle = (low + high) // 2
    inner = sorted(range(low + 1, high), key=lambda index: (abs(index - middle), index))
    return next((index for index in inner if answer(index) != StackState.UNKNOWN), None)


def _changes(answers: Sequence[StackState]) -> int:
    known = [answer for answer in answers if answer != StackState.UNKNOWN]
    return sum(state != other for state, other in pairwise(known))
