"""Describe what an update changed and what it left: as data, and in lines of 80 columns.

In lines, ids and commands stay whole.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.expectations.decide import Decisions
from harness.expectations.failure_pattern import first_line
from harness.expectations.ranges import text_of
from harness.expectations.update import Added, Narrowed, UpdatePlan
from harness.printable import folded

_WIDTH = 80
_SHOWN = 5


def as_data(decisions: Decisions, plan: UpdatePlan) -> dict[str, Any]:
    """Return all of the update as data, in the format that docs/json.md describes."""
    missing = {} if plan.added else decisions.missing
    return {
        "changed": [
            {
                "where": change.entry.where,
                "removed": not change.parts,
                "passing": sorted(change.gone),
                "needed": [
                    {"condition": dict(ranges), "cases": sorted(ids)}
                    for ranges, ids in change.narrowed.items()
                ],
            }
            for change in plan.narrowed
        ],
        "added": [
            {
                "file": str(added.path),
                "condition": dict(added.new.stack),
                "outcome": added.new.outcome,
                "signature": added.new.signature,
                "cases": list(added.new.cases),
            }
            for added in plan.added
        ],
        "left": {
            "flaky": sorted(decisions.flaky),
            "not_proven": sorted(decisions.too_few),
            "fail_otherwise": sorted(decisions.otherwise),
            "inseparable": sorted(decisions.inseparable),
            "without_entry": [
                {
                    "condition": dict(entry.ranges),
                    "outcome": str(entry.outcome),
                    "signature": entry.signature,
                    "cases": sorted(ids),
                }
                for entry, ids in missing.items()
            ],
        },
    }


def changes(plan: UpdatePlan) -> Iterator[str]:
    """Describe each entry that loses cases, and each new one."""
    for change in plan.narrowed:
        yield from _narrowed(change)
    for added in plan.added:
        yield from _added(added)
    counts = {
        "removed": sum(not change.parts for change in plan.narrowed),
        "narrowed": sum(bool(change.parts) for change in plan.narrowed),
        "added": len(plan.added),
    }
    counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    files = "1 file" if len(plan.texts) == 1 else f"{len(plan.texts)} files"
    yield f"entries: {counted} in {files}" if counted else "nothing to change"


def left(
    decisions: Decisions, plan: UpdatePlan, reports: Sequence[Path], runs: int
) -> Iterator[str]:
    """Yield what was not changed and why, with the command to run."""
    yield from _because("flaky: the reports of one stack disagree", decisions.flaky)
    yield from _because(
        f"not proven: expected {runs} reports of the stack; give more, or --runs 1",
        decisions.too_few,
    )
    yield from _because(
        "fail otherwise than their entry declares: change its signature, or make it another entry",
        decisions.otherwise,
    )
    yield from _because(
        "no version of one component tells the stacks where they pass from those where they fail",
        decisions.inseparable,
    )
    if decisions.missing and not plan.added:
        yield from _missing(decisions, reports, runs)


def _narrowed(change: Narrowed) -> Iterator[str]:
    entry = change.entry
    yield from _wrapped(f"{entry.where} ({entry.cause}: {entry.reason})")
    if change.gone:
        remainder = "without cases" if not change.parts else "goes from these cases"
        yield from _wrapped(f"passes wherever it applies: {remainder}", 2)
        yield from _ids(change.gone)
    for ranges, ids in change.narrowed.items():
        yield from _wrapped(f"needed on {text_of(dict(ranges))} only:", 2)
        yield from _ids(ids)


def _added(added: Added) -> Iterator[str]:
    _, cause = added.new.cause
    yield from _wrapped(f"{added.path}: added {cause} on {text_of(added.new.stack)}")
    yield from _wrapped(f"{added.new.outcome} with {added.new.signature}", 2)
    yield from _ids(added.new.cases)


def _missing(decisions: Decisions, reports: Sequence[Path], runs: int) -> Iterator[str]:
    yield f"fail without an entry: {len({i for m in decisions.missing.values() for i in m})}"
    for missing, ids in decisions.missing.items():
        yield from _wrapped(f"on {text_of(dict(missing.ranges))}: {missing.outcome}", 2)
        yield from _wrapped(first_line(decisions.messages[missing]), 4)
        yield from _ids(ids)
    function = next(iter(decisions.missing)).function
    typed = ["xla-harness", "known", "update", *map(str, reports)]
    typed += ["--runs", str(runs)] if runs != 2 else []
    yield from _wrapped("add them with their cause, as an upstream issue or --finding NAME:")
    yield f"  {shlex.join([*typed, '--cases', f'{function}*'])} --issue OWNER/REPO#NUMBER"


def _because(why: str, ids: Collection[str]) -> Iterator[str]:
    if ids:
        yield from _wrapped(f"{len(ids)} not changed: {why}")
        yield from _ids(sorted(ids))


def _ids(ids: Collection[str]) -> Iterator[str]:
    for id_ in list(ids)[:_SHOWN]:
        yield f"    {id_}"
    if len(ids) > _SHOWN:
        yield f"    ... and {len(ids) - _SHOWN} more"


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return folded(text, _WIDTH, " " * indent, " " * (indent + 2))
