"""Findings with one cause as one: sixty cases that fail alike are one thing to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.diagnosis.signature import generalised
from harness.verdicts.findings import VERDICTS, Finding, Verdict


@dataclass(frozen=True)
class Group:
    """Findings with the same verdict, issue, layer, component and failure but for its numbers."""

    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The one to look at; the others differ in numbers."""
        return self.findings[0]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all."""
        return self.first.verdict

    def __len__(self) -> int:
        return len(self.findings)


def groups(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """What one reads as one, in the order of Verdict, the largest first."""
    return _grouped(findings, lambda finding: finding.component)


def causes(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """What is rerun and attributed as one: groups of one area and one lane."""
    return _grouped(findings, lambda finding: (finding.area, finding.lane))


def basis(findings: Sequence[Finding]) -> str:
    """On which of them their verdicts and components rest, in words; "" where each is its own."""
    rerun = sum(finding.rerun_itself for finding in findings)
    rest = sum(bool(finding.rerun_cases) for finding in findings) - rerun
    alone = len(findings) - rerun - rest
    parts = [f"rerun: {rerun}{_for_others(rest)}"] if rest or (rerun and alone) else []
    parts += [f"not rerun: {alone}"] if alone and (rerun or rest) else []
    attributed = [finding for finding in findings if finding.component]
    own = sum(finding.attributed_case == finding.key for finding in attributed)
    if own < len(attributed):
        parts.append(f"attributed: {own}{_for_others(len(attributed) - own)}")
    return "; ".join(parts)


def _for_others(count: int) -> str:
    return f", for {count} other{'s' * (count > 1)}" if count else ""


def representatives(findings: Iterable[Finding], most: int) -> tuple[Finding, ...]:
    """At most ``most`` of them, from as many files, functions and parameters as there are.

    The choice is the same every time, and fewer are the first of more.
    """
    files: dict[str, dict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in sorted(findings, key=lambda finding: finding.key):
        function = finding.id.partition("[")[0]
        files[function.partition("::")[0]][function].append(finding)
    ranked = [
        ((turn, place, finding.key), finding)
        for functions in files.values()
        for place, members in enumerate(functions.values())
        for turn, finding in enumerate(_ends_first(members))
    ]
    return tuple(finding for _, finding in sorted(ranked, key=lambda pair: pair[0])[:most])


def _ends_first(members: Sequence[Finding]) -> Iterator[Finding]:
    """The first, the last, the middle one, then the others."""
    indices = (0, len(members) - 1, len(members) // 2, *range(len(members)))
    yield from (members[index] for index in dict.fromkeys(indices))


def _grouped(findings: Iterable[Finding], also: Callable[[Finding], object]) -> tuple[Group, ...]:
    together: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        cause = generalised(finding.failure)
        key = (finding.verdict, finding.issues, finding.layer, cause, also(finding))
        together.setdefault(key, []).append(finding)
    made = [Group(tuple(members)) for members in together.values()]
    made.sort(key=lambda group: (VERDICTS.index(group.verdict), -len(group), group.first.key))
    return tuple(made)
