"""The answer of ``survive``: for the terminal, as Markdown and as plain values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.diagnosis.signature import headline
from harness.render.comparison_github import group_table
from harness.render.github_markup import plain
from harness.render.terminal_lines import heading, title, wrapped
from harness.survive.side import SideRun
from harness.survive.survival import Proof, is_bad
from harness.verdicts.finding import Finding, counted
from harness.verdicts.groups import Group, groups
from harness.verdicts.words import VERDICTS, Verdict

_MOST = 20  # groups of a verdict


@dataclass(frozen=True)
class Survival:
    """Both sides, what differs, and what the candidate is."""

    findings: Sequence[Finding]
    base: SideRun
    candidate: SideRun
    proofs: Sequence[tuple[Proof | None, Proof | None]]  # of each package asked for, on both sides
    moved: Mapping[str, tuple[str, str]]
    wanted: Sequence[str]  # packages

    @property
    def exit_code(self) -> int:
        """1 if something broke, is missing or takes ten times as long."""
        return int(any(map(is_bad, self.findings)))

    def counts(self, *, bad: bool) -> dict[Verdict, str]:
        """Return how many tests have each verdict, of those that are worse or of the others."""
        chosen = [each for each in self.findings if is_bad(each) == bad]
        by_verdict = {v: [each for each in chosen if each.verdict == v] for v in VERDICTS}
        return {v: counted(members, v) for v, members in by_verdict.items() if members}

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return what is not unchanged, by verdict and cause."""
        return groups(each for each in self.findings if each.verdict != Verdict.UNCHANGED)


def lines(survival: Survival) -> Iterator[str]:
    """Yield the answer for the terminal: what differs by cause, then what was measured."""
    shown: dict[Verdict, list[Group]] = {}
    for group in survival.groups:
        shown.setdefault(group.verdict, []).append(group)
    for members in shown.values():
        yield heading(members)
        for group in members[:_MOST]:
            yield from wrapped(_cause(group), 7, f"{len(group):>5}  ")
            yield from wrapped(group.first.key, 9, "         ")
            yield from wrapped(group.first.note, 9)
        if len(members) > _MOST:
            yield f"       ... and {len(members) - _MOST} more causes"
    yield title("answer")
    for sentence in filter(None, _sentences(survival)):
        yield from wrapped(sentence)


def markdown(survival: Survival) -> str:
    """Return the same for a job's summary."""
    first, *rest = map(plain, filter(None, _sentences(survival)))
    table = group_table(survival.groups, _MOST)
    return "\n".join([f"**{first}**", "", *(f"{each}  " for each in rest), "", *table, ""])


def badge(requirements: Collection[str], survival: Survival | None = None) -> str:
    """Return the JSON of a badge, as https://shields.io/badges/endpoint-badge reads it.

    Without ``survival`` it says that there is no answer.
    """
    label = ", ".join(requirements).replace("==", " ")
    message, color = "no answer", "lightgrey"
    if survival is not None:
        label = ", ".join(f"{name} {survival.moved[name][1]}" for name in survival.wanted)
        count = sum(map(is_bad, survival.findings))
        message = f"{count} test{'s break' if count > 1 else ' breaks'}" if count else "works"
        color = "red" if count else "brightgreen"
    data = {"schemaVersion": 1, "label": label, "message": message, "color": color}
    return f"{json.dumps(data)}\n"


def as_plain(survival: Survival) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "exit_code": survival.exit_code,
        "counts": dict(Counter(str(each.verdict) for each in survival.findings)),
        "moved": {name: {"from": a, "to": b} for name, (a, b) in survival.moved.items()},
        "loaded": [
            {"base": before and asdict(before), "candidate": after and asdict(after)}
            for before, after in survival.proofs
        ],
        "seconds": {
            "base": round(survival.base.seconds, 1),
            "candidate": round(survival.candidate.seconds, 1),
        },
        "reused": {"base": survival.base.reused, "candidate": survival.candidate.reused},
        "platforms": {
            "base": survival.base.platforms,
            "candidate": survival.candidate.platforms,
        },
        "cut": survival.candidate.cut,
        "tests": [
            {
                "test": each.key,
                "verdict": str(each.verdict),
                "expected": each.expected,
                "layer": each.layer,
                "failure": headline(each.message) if each.message else "",
                "note": each.note,
                "costs": [asdict(cost) for cost in each.costs],
            }
            for each in survival.findings
            if each.verdict != Verdict.UNCHANGED
        ],
    }


def _cause(group: Group) -> str:
    first = group.first
    if first.costs:
        return "; ".join(map(str, first.costs))
    text = headline(first.message) if first.message else ""
    return ": ".join(part for part in (first.layer, text) if part) or "no reason known"


def _sentences(survival: Survival) -> Iterator[str]:
    worse, others = (survival.counts(bad=bad).values() for bad in (True, False))
    yield f"{', '.join(worse)}." if worse else "Nothing broke."
    yield f"{', '.join(others)}." if others else ""
    broken = sum(result.outcome.is_bad for result in survival.base.uncollected.values())
    many = f"{broken} modules can't be imported on the base, so their"
    few = "1 module can't be imported on the base, so its"
    yield f"{many if broken > 1 else few} tests say nothing." if broken else ""
    for before, after in survival.proofs:
        if after is not None:
            was = before.version if before is not None else "not loaded"
            yield (
                f"{after.package} {was} -> {after.version}, which {after.processes} of "
                f"{after.of} test processes had loaded, from {after.place}."
            )
    along = [
        f"{name} {a or 'absent'} -> {b or 'absent'}"
        for name, (a, b) in survival.moved.items()
        if name not in survival.wanted
    ]
    yield f"Moved along: {', '.join(along)}." if along else ""
    base, candidate = survival.base, survival.candidate
    where = f", on {' and '.join(candidate.platforms)}" if candidate.platforms else ""
    yield (
        f"{base.passed} tests passed in {base.seconds:.0f} s on the base, {candidate.passed} in "
        f"{candidate.seconds:.0f} s with the candidate{where}."
    )
    for name, side in (("base", base), ("candidate", candidate)):
        yield f"{name}: reused, measured at {side.reused}." if side.reused else ""
    yield (
        f"The candidate's run was {candidate.cut}: what is missing may only be late."
        if candidate.cut
        else ""
    )
