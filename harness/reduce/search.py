"""Search for the smallest program with the same failure: take each step that keeps it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from harness.reduce.shrinking import STEPS
from harness.reduce.stablehlo import bare, count, valid
from harness.reduce.trial import Endings, ProgramEnding, endings

Say = Callable[[str], None]
_NOT_EXECUTED = ("refused", "has", "larger")


@dataclass
class Search:
    """Search for the smallest program that ends as another one does.

    Attributes:
        ending: how it has to end.
        until: a time of the monotonic clock, after which no program is tried.
        say: told of each step that was taken.
        ask: returns how programs end.
        tried: the programs that were tried, of which none is tried again.
    """

    ending: ProgramEnding
    until: float
    say: Say
    ask: Endings = endings
    tried: set[str] = field(default_factory=set)

    def smallest(self, text: str) -> tuple[str, bool]:
        """Return the smallest program, and whether the search came to its end.

        The first of two programs that both end so is taken, so nothing but ``until`` depends on
        the machine.
        """
        best = text
        try:
            for program in self._smaller(text):
                best = program
        except KeyboardInterrupt:
            return best, False
        return best, time.monotonic() <= self.until

    def _smaller(self, text: str) -> Iterator[str]:
        """Yield programs that end so, each smaller than the one before it."""
        yield (text := self._first([bare(text)])[1] or text)
        before = ""
        while text != before:
            before = text
            for step in STEPS:
                start, end = 0, -1
                while start != end:
                    place, smaller = self._first(step(text), start)
                    if smaller:
                        yield (text := smaller)
                        self.say(f"{count(text)} instructions: {step.__name__.replace('_', ' ')}")
                    # What failed before this place mostly does so again: a last round sees to it.
                    start, end = (place, -1) if smaller else (0, start)

    def _first(self, candidates: Iterable[str], start: int = 0) -> tuple[int, str]:
        """Return the first candidate from a place on that ends so, and its place.

        It is "" if none does or there is no time left. What is executed has to end so twice: once
        may be by chance, of a crash above all.
        """
        together = len(os.sched_getaffinity(0))
        fresh = self._fresh(candidates, start)
        while time.monotonic() < self.until and (batch := list(islice(fresh, together))):
            own = self.ask([each for _, each in batch])
            for (place, each), ending in zip(batch, own, strict=True):
                is_sure = ending.kind in _NOT_EXECUTED
                if self._is_like(ending) and (is_sure or self._is_like(*self.ask([each]))):
                    return place, each
        return 0, ""

    def _is_like(self, ending: ProgramEnding) -> bool:
        return ending.signature == self.ending.signature

    def _fresh(self, candidates: Iterable[str], start: int) -> Iterator[tuple[int, str]]:
        for place, candidate in enumerate(candidates):
            each = candidate if place >= start else ""
            each = each and valid(each)
            if each and each not in self.tried:
                self.tried.add(each)
                yield place, each
