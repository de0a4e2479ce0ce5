"""A comparison for the terminal, in lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from harness.printable import escaped, printable
from harness.render.markdown import counts, rested, versions
from harness.verdicts.allow import Allowed
from harness.verdicts.decision import decide
from harness.verdicts.findings import VERDICTS, Comparison, Verdict
from harness.verdicts.groups import Group, basis, groups

WIDTH = 80
_SHOWN = 10  # groups of a verdict


def lines(comparison: Comparison, allowed: Allowed | None = None) -> Iterator[str]:
    """What differs first, then the stacks, then the answer."""
    yield from map(printable, _lines(comparison, allowed or Allowed({}, ())))


def _lines(comparison: Comparison, allowed: Allowed) -> Iterator[str]:
    for verdict in VERDICTS:
        if verdict != Verdict.UNCHANGED:
            found = [f for f in comparison.of(verdict) if f.key not in allowed.entries]
            yield from section(str(verdict), groups(found))
    yield from _allowed(allowed)
    yield from _versions(comparison)
    yield title("first answer" if comparison.open else "answer")
    yield from wrapped(f"{counts(comparison)}.")
    yield from wrapped(rested(comparison))
    yield from wrapped(decide(comparison, allowed.entries).sentence)


def title(text: str) -> str:
    """A heading across the terminal."""
    return f"{f' {text} ':-^{WIDTH}}"[:WIDTH]


def wrapped(text: str, indent: int = 0, first: str = "") -> Iterator[str]:
    """``text`` in lines that fit, its first one behind ``first``."""
    yield from textwrap.wrap(
        escaped(" ".join(text.split())),
        WIDTH,
        initial_indent=first or " " * indent,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,  # a case's id must be copied whole
    )


def section(name: str, found: Sequence[Group], shown: int = _SHOWN) -> Iterator[str]:
    """The groups of one verdict: how many cases, where they broke, whose issue, the first case."""
    if not found:
        return
    yield title(f"{name}: {sum(map(len, found))}")
    for group in found[:shown]:
        first = group.first
        carried = f"carried by {first.component}" if first.component else ""
        facts = [first.layer, " ".join(first.issues), carried]
        head = ", ".join(fact for fact in facts if fact) or "no issue"
        yield from wrapped(head, 7, f"{len(group):>5}  ")
        yield from wrapped(first.key, 2)
        yield from wrapped(first.failure, 9)
        yield from wrapped(first.note, 9)
        yield from wrapped(basis(group.findings), 9)
    if len(found) > shown:
        cases = sum(map(len, found[shown:]))
        yield f"       ... and {len(found) - shown} more groups with {cases} cases"


def _allowed(allowed: Allowed) -> Iterator[str]:
    if allowed.entries:
        yield title(f"signed off: {len(allowed.entries)}")
        entries = list(allowed.entries.values())
        for entry in dict.fromkeys(entries):
            text = f"{entry.verdict}: {entry.reason} ({entry.signed_off_by})"
            yield from wrapped(text, 7, f"{entries.count(entry):>5}  ")
    if allowed.stale:
        yield title("allow-list entries that allow nothing here")
        for entry in allowed.stale:
            yield from wrapped(f"{entry.where}: {entry.reason}", 2)


def _versions(comparison: Comparison) -> Iterator[str]:
    yield title("stacks, * where they differ")
    rows = [("", comparison.base.name, comparison.candidate.name), *versions(comparison)]
    for name, was, is_ in rows:
        mark = "*" if name and was != is_ else " "
        yield f"{mark} {name[:14]:<15}{was[:30]:<31}{is_[:30]}".rstrip()
