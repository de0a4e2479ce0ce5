"""Cases with one verdict and one cause, as a group: sixty that fail alike are one thing to read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness.diagnosis.signature import generalised
from harness.verdicts.findings import Finding
from harness.verdicts.nightly import NightVerdict
from harness.verdicts.words import VERDICTS, Verdict


class _Judged(Protocol):
    """A case with its verdict, of a comparison or of a night."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def expected(self) -> bool: ...
    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=_Judged)


@dataclass(frozen=True)
class Group(Generic[T]):
    """Cases with the same verdict and the same cause."""

    members: tuple[T, ...]

    @property
    def first(self) -> T:
        """The one to look at."""
        return self.members[0]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all."""
        return self.first.verdict

    @property
    def expected(self) -> bool:
        """Whether an expectation declares their failures: that of all, or that of none."""
        return self.first.expected

    @property
    def name(self) -> str:
        """``regressed``, or ``regressed (expected)``."""
        return f"{self.verdict} (expected)" if self.expected else self.verdict

    def __len__(self) -> int:
        return len(self.members)


def groups(findings: Iterable[Finding]) -> tuple[Group[Finding], ...]:
    """Findings with the same verdict, issues, layer, component and failure but for its numbers."""
    return _grouped(findings, lambda f: (f.issues, f.layer, f.component, generalised(f.failure)))


def night_groups(found: Iterable[NightVerdict]) -> tuple[Group[NightVerdict], ...]:
    """Verdicts with the same lane, outcome, layer, signature and beginning.

    What became slower has no cause in common: such a verdict is a group of its own.
    """

    def cause(v: NightVerdict) -> Hashable:
        slower = (v.number, v.case, v.topology) if v.verdict == Verdict.SLOWER else ()
        return (v.lane, v.outcome, v.layer, v.signature, v.since, *slower)

    return _grouped(found, cause)


def _grouped(judged: Iterable[T], cause: Callable[[T], Hashable]) -> tuple[Group[T], ...]:
    """In the order of Verdict; unexpected failures before expected ones, then the largest."""
    together: dict[Hashable, list[T]] = {}
    for each in judged:
        together.setdefault((each.verdict, each.expected, cause(each)), []).append(each)
    made = [Group(tuple(members)) for members in together.values()]
    made.sort(key=lambda g: (VERDICTS.index(g.verdict), g.expected, -len(g), g.first.key))
    return tuple(made)
