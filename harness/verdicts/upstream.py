"""The rows of ``fixtures/upstream.toml``: what a release gets right, in an engineer's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from harness.diagnosis.layers import LAYERS
from harness.expectations import glob_pattern
from harness.model.outcome import WORKS, Kind

_ORDER = list(LAYERS)


class Measured(Protocol):
    """Case of a run, as its record or its report has it."""

    @property
    def id(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def layer(self) -> str: ...


M = TypeVar("M", bound=Measured)


@dataclass(frozen=True)
class RowAnswer:
    """Answer of a row's cases: how many of them work, are broken, or can't tell."""

    passed: int
    wrong: int
    unmeasured: int

    @property
    def verdict(self) -> str:
        """``ok``, ``wrong`` or ``unmeasured``: a row is ok if every case that can tell works."""
        if not self.passed + self.wrong:
            return "unmeasured"
        return "wrong" if self.wrong else "ok"

    @property
    def count(self) -> str:
        """Passed of all, as in ``10/12``."""
        return f"{self.passed}/{self.passed + self.wrong + self.unmeasured}"


@dataclass(frozen=True)
class Row:
    """A statement about the stack, and the cases that prove or refute it.

    With a ``layer``, a case that broke at an earlier one did not reach what the row is about.
    """

    title: str
    issues: tuple[str, ...]
    cases: tuple[str, ...]
    layer: str = "trace"  # so that only a release without the API says nothing

    @cached_property
    def _patterns(self) -> list[Any]:
        return [glob_pattern(case) for case in self.cases]

    def names(self, case_id: str) -> bool:
        """Return whether the case belongs to the row."""
        return any(pattern.fullmatch(case_id) for pattern in self._patterns)

    def select(self, results: Iterable[M]) -> list[M]:
        """Return the results of the row's cases."""
        return [result for result in results if self.names(result.id)]

    def answer(self, results: Sequence[Measured]) -> RowAnswer:
        """Return the stack's answer, from the results that ``select`` chose."""
        works = sum(r.outcome in WORKS for r in results)
        silent = sum(r.outcome == Kind.SKIPPED or self.is_before(r.layer) for r in results)
        return RowAnswer(works, len(results) - works - silent, silent)

    def is_before(self, layer: str) -> bool:
        """Return whether a case that broke at ``layer`` broke before what the row is about."""
        return layer in LAYERS and _ORDER.index(layer) < _ORDER.index(self.layer)
