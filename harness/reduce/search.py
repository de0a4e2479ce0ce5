"""Search for the smallest program with the same failure: take each step that keeps it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from harness.reduce.shrinking import STEPS
from harness.reduce.stablehlo import bare, count, valid
from harness.reduce.trial import ProgramEnding, endings

Say = Callable[[str], None]


@dataclass
class Search:
    """Search for the smallest program that ends as another one does.

    Attributes:
        ending: how it has to end.
        until: a time of the monotonic clock, after which no program is tried.
        say: told of each step that was taken.
        tried: the programs that were tried, of which none is tried again.
    """

    ending: ProgramEnding
    until: float
    say: Say
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
        yield (text := self._first([bare(text)]) or text)
        before = ""
        while text != before:
            before = text
            for step in STEPS:
                while smaller := self._first(step(text)):
                    yield (text := smaller)
                    self.say(f"{count(text)} instructions: {step.__name__.replace('_', ' ')}")

    def _first(self, candidates: Iterable[str]) -> str:
        """Return the first candidate that ends so, "" if none does or there is no time left."""
        together = len(os.sched_getaffinity(0))
        fresh = self._fresh(candidates)
        while time.monotonic() < self.until and (batch := list(islice(fresh, together))):
            for each, own in zip(batch, endings(batch), strict=True):
                if own.signature == self.ending.signature:
                    return each
        return ""

    def _fresh(self, candidates: Iterable[str]) -> Iterator[str]:
        for candidate in candidates:
            each = candidate and valid(candidate)
            if each and each not in self.tried:
                self.tried.add(each)
                yield each
