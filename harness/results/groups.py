"""Findings with one cause as one: sixty cases that fail alike are one thing to read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.results.findings import VERDICTS, Finding, Verdict

_GENERAL = (
    (re.compile(r"0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)*([\w.+@-]+)"), r"\1"),  # a path is its last part
    (re.compile(r"(?<![\w)\]])-?\d+(\.\d+)?(e[+-]?\d+)?|\d+"), "N"),
    (re.compile(r"\bN(xN)+"), "N"),
    (re.compile(r"N,?(, N)+"), "N"),
    (re.compile(r"(\(N,?\)|\[N\])(, (\(N,?\)|\[N\]))*"), "(N)"),
)


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


def generalised(failure: str) -> str:
    """The first line of a failure without numbers, addresses and folders."""
    text = first_line(failure)
    for pattern, replacement in _GENERAL:
        text = pattern.sub(replacement, text)
    return text


def first_line(text: str) -> str:
    """The first line that says something, without a trailing blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
