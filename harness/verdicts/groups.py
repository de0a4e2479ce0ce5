"""Cases with one verdict and one cause, as a group: sixty that fail alike are one thing to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.model.case_id import file_of, function_of
from harness.verdicts.finding import Finding
from harness.verdicts.words import VERDICTS, Verdict


@dataclass(frozen=True)
class Group:
    """Cases with the same verdict and the same cause."""

    members: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The one to look at."""
        return self.members[0]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all."""
        return self.first.verdict

    @property
    def expected(self) -> bool:
        """Return whether expectations declare the members' failures: all of them, or none."""
        return self.first.expected

    @property
    def name(self) -> str:
        """``regressed``, or ``regressed (expected)``."""
        return f"{self.verdict} (expected)" if self.expected else self.verdict

    def __len__(self) -> int:
        return len(self.members)


F = TypeVar("F", bound=Finding)
G = TypeVar("G", bound=Group)


def groups(cases: Iterable[Finding]) -> tuple[Group, ...]:
    """Group a comparison's cases by verdict, issues, layer, component and signature."""
    return grouped(cases, lambda case: (*_cause(case), case.component), Group)


def causes(cases: Iterable[Finding]) -> tuple[Group, ...]:
    """Group what is rerun and attributed as one: cases of one cause, area and lane."""
    return grouped(cases, lambda case: (*_cause(case), case.area, case.lane), Group)


def _cause(case: Finding) -> tuple[Hashable, ...]:
    facts = (*(cost.what for cost in case.costs), *(change.what for change in case.changes))
    return (case.issues, case.cause, facts)


def night_groups(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Group a night's findings by cause and beginning; those without a cause by lane and outcome.

    What became slower has no cause in common: each such finding is a group of its own.
    """

    def cause(finding: Finding) -> Hashable:
        slower = (finding.costs, finding.case, finding.topology) if finding.costs else ()
        return (finding.cause or (finding.lane, finding.outcome), finding.since, *slower)

    return grouped(findings, cause, Group)


def basis(cases: Sequence[Finding]) -> str:
    """Describe on which cases the verdicts and components rest; "" if each rests on itself."""
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


def representatives(cases: Iterable[Finding], most: int) -> tuple[Finding, ...]:
    """Return at most ``most`` cases, of as many files, functions and parameters as there are.

    The choice is the same every time, and fewer are the first of more.
    """
    files: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for case in sorted(cases, key=lambda case: case.key):
        function = function_of(case.case)
        files[file_of(function)][function].append(case)
    ranked = [
        ((turn, place, case.key), case)
        for functions in files.values()
        for place, members in enumerate(functions.values())
        for turn, case in enumerate(_ends_first(members))
    ]
    return tuple(case for _, case in sorted(ranked, key=lambda pair: pair[0])[:most])


def _ends_first(members: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the first, the last, the middle one, then the others."""
    indices = (0, len(members) - 1, len(members) // 2, *range(len(members)))
    yield from (members[index] for index in dict.fromkeys(indices))


def grouped(
    findings: Iterable[F], cause: Callable[[F], Hashable], group: Callable[[tuple[F, ...]], G]
) -> tuple[G, ...]:
    """Group findings; sort by Verdict, then unexpected before expected, then largest first."""
    together: dict[Hashable, list[F]] = {}
    for each in findings:
        together.setdefault((each.verdict, each.expected, cause(each)), []).append(each)
    made = [group(tuple(members)) for members in together.values()]
    made.sort(key=lambda g: (VERDICTS.index(g.verdict), g.expected, -len(g), g.first.key))
    return tuple(made)
