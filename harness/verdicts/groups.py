"""Cases with one verdict and one cause, as a group: sixty that fail alike are one thing to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness.diagnosis.cause import signature_of
from harness.model.case_id import file_of, function_of
from harness.verdicts.comparison import ComparedCase
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


def groups(cases: Iterable[ComparedCase]) -> tuple[Group[ComparedCase], ...]:
    """Findings with the same verdict, issues, layer, component and failure but for its numbers."""
    return _grouped(cases, lambda case: (*_cause(case), case.component))


def causes(cases: Iterable[ComparedCase]) -> tuple[Group[ComparedCase], ...]:
    """What is rerun and attributed as one: cases of one cause, area and lane."""
    return _grouped(cases, lambda case: (*_cause(case), case.area, case.lane))


def _cause(case: ComparedCase) -> tuple[Hashable, ...]:
    facts = (*(cost.what for cost in case.costs), *(change.what for change in case.changes))
    return (case.issues, case.layer, signature_of(case.id, case.failure), facts)


def night_groups(found: Iterable[NightVerdict]) -> tuple[Group[NightVerdict], ...]:
    """Verdicts with the same cause and beginning; those without a cause by lane and outcome.

    What became slower has no cause in common: such a verdict is a group of its own.
    """

    def cause(v: NightVerdict) -> Hashable:
        slower = (v.number, v.case, v.topology) if v.verdict == Verdict.SLOWER else ()
        return (v.cause or (v.lane, v.outcome), v.since, *slower)

    return _grouped(found, cause)


def basis(cases: Sequence[ComparedCase]) -> str:
    """On which of them their verdicts and components rest, in words; "" where each is its own."""
    rerun = sum(case.rerun_itself for case in cases)
    rest = sum(bool(case.rerun_cases) for case in cases) - rerun
    alone = len(cases) - rerun - rest
    parts = [f"rerun: {rerun}{_for_others(rest)}"] if rest or (rerun and alone) else []
    parts += [f"not rerun: {alone}"] if alone and (rerun or rest) else []
    attributed = [case for case in cases if case.component]
    own = sum(case.attributed_case == case.key for case in attributed)
    if own < len(attributed):
        parts.append(f"attributed: {own}{_for_others(len(attributed) - own)}")
    return "; ".join(parts)


def _for_others(count: int) -> str:
    return f", for {count} other{'s' * (count > 1)}" if count else ""


def representatives(cases: Iterable[ComparedCase], most: int) -> tuple[ComparedCase, ...]:
    """At most ``most`` of them, from as many files, functions and parameters as there are.

    The choice is the same every time, and fewer are the first of more.
    """
    files: dict[str, dict[str, list[ComparedCase]]] = defaultdict(lambda: defaultdict(list))
    for case in sorted(cases, key=lambda case: case.key):
        function = function_of(case.id)
        files[file_of(function)][function].append(case)
    ranked = [
        ((turn, place, case.key), case)
        for functions in files.values()
        for place, members in enumerate(functions.values())
        for turn, case in enumerate(_ends_first(members))
    ]
    return tuple(case for _, case in sorted(ranked, key=lambda pair: pair[0])[:most])


def _ends_first(members: Sequence[ComparedCase]) -> Iterator[ComparedCase]:
    """The first, the last, the middle one, then the others."""
    indices = (0, len(members) - 1, len(members) // 2, *range(len(members)))
    yield from (members[index] for index in dict.fromkeys(indices))


def _grouped(judged: Iterable[T], cause: Callable[[T], Hashable]) -> tuple[Group[T], ...]:
    """In the order of Verdict; unexpected failures before expected ones, then the largest."""
    together: dict[Hashable, list[T]] = {}
    for each in judged:
        together.setdefault((each.verdict, each.expected, cause(each)), []).append(each)
    made = [Group(tuple(members)) for members in together.values()]
    made.sort(key=lambda g: (VERDICTS.index(g.verdict), g.expected, -len(g), g.first.key))
    return tuple(made)
