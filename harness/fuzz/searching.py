"""Hypothesis draws programs until the time ends, and makes each one that fails smaller."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from harness.fuzz.random_program import RandomProgram, random_programs
from harness.fuzz.subjects import RandomEnding, Subject

_ROUND = 2000  # programs, after which Hypothesis begins anew
_MUCH = 2.0  # times as many bytes as on the base, and at least so many more
_BYTES = 64


@dataclass(frozen=True)
class RandomFailure:
    """A program that fails, as small as Hypothesis could make it.

    ``endings`` has how it ends on each subject, in their order.
    """

    program: RandomProgram
    endings: Sequence[RandomEnding]

    @property
    def place(self) -> int:
        """Return the number of the first subject on which it fails."""
        return next(n for n, ending in enumerate(self.endings) if ending.is_failure)

    @property
    def ending(self) -> RandomEnding:
        """Return how it ends there."""
        return self.endings[self.place]

    @property
    def signature(self) -> str:
        """Return what is equal for equal failures, subject by subject."""
        return "; ".join(ending.signature for ending in self.endings)


@dataclass
class Explained:
    """Failures that have one cause.

    Attributes:
        signatures: of the failures that were made small.
        features: what their programs have in common.
    """

    signatures: set[str]
    features: frozenset[str]

    def explains(self, failure: RandomFailure) -> bool:
        """Return whether a failure probably has this cause, in a larger program.

        Wrong numbers say little about their cause, so the operators decide.
        """
        if failure.signature not in self.signatures:
            return False
        says_little = failure.ending.signature == failure.ending.kind
        return not says_little or self.features <= failure.program.features


@dataclass
class Drawn:
    """What a search has drawn, and how it ended.

    Attributes:
        programs: how many programs ran.
        causes: those of the failures, by what ``tell`` returned.
        flaky: how many programs failed once and then did not.
    """

    programs: int = 0
    causes: dict[Hashable, Explained] = field(default_factory=dict)
    flaky: int = 0


@dataclass
class RandomSearch:
    """Search for programs that fail.

    Attributes:
        subjects: on which each program runs; with several, the first is the base.
        until: the end, as a time of the monotonic clock.
        without: operators that no program has.
        tell: is called with each failure once it is small; returns what its cause is.
    """

    subjects: Sequence[Subject]
    until: float
    tell: Callable[[RandomFailure], Hashable]
    without: Collection[str] = ()
    drawn: Drawn = field(default_factory=Drawn)
    _right: set[str] = field(default_factory=set)
    _smallest: dict[str, RandomFailure] = field(default_factory=dict)  # of this round

    def go_on(self, seed: int, examples: Path) -> None:
        """Draw programs until the time ends, or Ctrl-C.

        ``examples`` is the folder in which Hypothesis keeps those that fail; it tries them first.
        """
        database = DirectoryBasedExampleDatabase(examples)
        number, is_over = seed << 20, False
        while not is_over:
            self._smallest = {}
            try:
                self._round(number, database)
            except hypothesis.errors.Flaky:
                self.drawn.flaky += 1
                self._smallest = {}
            except (_TimeIsUpError, KeyboardInterrupt):
                is_over = True
            except Exception:  # a failure, or a group of them
                if not self._smallest:
                    raise
            for failure in self._smallest.values():
                self._learn(failure)
            number += 1

    def _learn(self, failure: RandomFailure) -> None:
        """Add a failure to its cause, so that no other program with it is made smaller."""
        features, key = failure.program.features, self.tell(failure)
        cause = self.drawn.causes.setdefault(key, Explained(set(), features))
        cause.signatures.add(failure.signature)
        cause.features = cause.features & features or features

    def _round(self, seed: int, database: DirectoryBasedExampleDatabase) -> None:
        devices = min(subject.facts["devices"] for subject in self.subjects)
        has_gspmd = all(subject.facts["gspmd"] for subject in self.subjects)

        @hypothesis.seed(seed)
        @settings(
            max_examples=_ROUND,
            database=database,
            deadline=None,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=True,  # else one that shrinks may become another one
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        @hypothesis.given(
            random_programs(
                devices,
                has_gspmd=has_gspmd,
                framework=self.subjects[0].framework,
                without=self.without,
            )
        )
        def check(program: RandomProgram) -> None:
            self._check(program)

        check()

    def _check(self, program: RandomProgram) -> None:
        if not program.features:
            return  # nothing is computed
        failure = RandomFailure(program, self._endings(program))
        if not any(ending.is_failure for ending in failure.endings):
            return
        if any(cause.explains(failure) for cause in self.drawn.causes.values()):
            return
        known = self._smallest.get(failure.signature, failure)
        self._smallest[failure.signature] = min(known, failure, key=lambda f: len(f.program.text))
        raise _error_of(failure.signature)

    def _endings(self, program: RandomProgram) -> Sequence[RandomEnding]:
        """Run a program, unless it was right before: a failure has to happen again."""
        if program.text in self._right:
            return [RandomEnding("right")] * len(self.subjects)
        if time.monotonic() > self.until:
            raise _TimeIsUpError
        base, *others = [subject.run(program) for subject in self.subjects]
        endings = [base, *(compared(base, other) for other in others)]
        self.drawn.programs += 1
        if not any(ending.is_failure for ending in endings):
            self._right.add(program.text)
        return endings


def compared(base: RandomEnding, other: RandomEnding) -> RandomEnding:
    """Return the ending, or that it exchanges much more than the base."""
    is_larger = other.exchanged > max(_MUCH * base.exchanged, base.exchanged + _BYTES)
    if not is_larger or (base.kind, other.kind) != ("right", "right"):
        return other
    detail = f"a device exchanges {other.exchanged} bytes, on the base {base.exchanged}"
    return replace(other, kind="larger", detail=detail)


class _TimeIsUpError(BaseException):
    """No time is left. Hypothesis lets what is no Exception through."""


class _FailedError(Exception):
    """A program failed; each signature has a class of its own, which Hypothesis keeps apart."""


_ERRORS: dict[str, type[_FailedError]] = {}


def _error_of(signature: str) -> _FailedError:
    kind = _ERRORS.setdefault(signature, type("SomeFailedError", (_FailedError,), {}))
    return kind(signature)
