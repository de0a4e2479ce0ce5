"""Findings with one cause as one: sixty cases that fail alike are one thing to read."""

from __future__ import annotations

from collections.abc import Iterable
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
    """In the order of Verdict, the largest first."""
    together: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        cause = generalised(finding.failure)
        key = (finding.verdict, finding.issues, finding.layer, finding.component, cause)
        together.setdefault(key, []).append(finding)
    made = [Group(tuple(members)) for members in together.values()]
    made.sort(key=lambda group: (VERDICTS.index(group.verdict), -len(group), group.first.key))
    return tuple(made)
