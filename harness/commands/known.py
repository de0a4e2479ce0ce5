"""``xla-harness known``: the defects that are expected, without a run, and their update."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.commands import known_update, project
from harness.commands.output import answer, columns
from harness.commands.parsers import add_folder, add_json
from harness.expectations import Expectation
from harness.printable import folded
from harness.stacks.catalogue import versions_of
from harness.verdicts.upstream import Row

Stacks = Mapping[str, Mapping[str, str]]  # name to component to version


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--stack", metavar="NAME", help="only what is expected on this stack")
    parser.add_argument("--cause", metavar="TEXT", help="only issues and findings with this text")
    add_folder(parser)
    add_json(parser)
    parser.set_defaults(run=_run)
    actions = parser.add_subparsers(metavar="ACTION")
    known_update.add(actions.add_parser("update", help="rewrite the files from reports"))


def _run(options: argparse.Namespace) -> int:
    catalogue = project.catalogue(options.folder)
    stacks = {stack.name: versions_of(stack) for stack in catalogue.stacks}
    entries = project.declared(options.folder).entries
    if options.stack:
        stacks = {options.stack: versions_of(catalogue.find(options.stack))}
        entries = tuple(e for e in entries if e.condition.holds(stacks[options.stack]))
    if options.cause:
        entries = tuple(e for e in entries if options.cause in e.cause)
    data = as_data(entries, stacks, project.upstream_rows())
    answer(options, data, "\n".join(lines(data, columns())))
    return 0


def as_data(
    entries: Sequence[Expectation], stacks: Stacks, rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """Return a value for each cause, issues before findings, as docs/json.md describes it."""
    by_cause: dict[str, list[Expectation]] = {}
    for entry in entries:
        by_cause.setdefault(entry.cause, []).append(entry)
    return [
        _cause(cause, by_cause[cause], stacks, rows)
        for cause in sorted(by_cause, key=lambda cause: ("#" not in cause, cause))
    ]


def _cause(
    cause: str, entries: Sequence[Expectation], stacks: Stacks, rows: Sequence[Row]
) -> dict[str, Any]:
    about = [row for row in rows if cause in row.issues]
    issue = cause if "#" in cause else None
    return {
        "issue": issue,
        "finding": None if issue else cause.removeprefix("finding "),
        "title": about[0].title if about else entries[0].reason,
        "expectations": [
            {
                "where": entry.where,
                "reason": entry.reason,
                "outcome": str(entry.outcome),
                "signature": entry.signature,
                "condition": str(entry.condition),
                "stacks": [n for n, versions in stacks.items() if entry.condition.holds(versions)],
                "cases": list(entry.cases),
            }
            for entry in entries
        ],
    }


def lines(data: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yield what ``as_data`` returns as lines for a terminal of that width; case patterns stay
    whole.
    """
    for cause in data:
        name = cause["issue"] or f"finding {cause['finding']}"
        alone = all(entry["reason"] == cause["title"] for entry in cause["expectations"])
        yield from folded(name if alone else f"{name}: {cause['title']}", width, rest=" " * 4)
        for entry in cause["expectations"]:
            stacks = ", ".join(entry["stacks"]) or entry["condition"] or "any stack"
            text = f"{entry['outcome']} on {stacks}: {entry['reason']}"
            yield from folded(text, width, " " * 2, " " * 6)
            yield f"    {entry['where']}"
            yield from (f"      {case}" for case in entry["cases"])
    count = sum(len(cause["expectations"]) for cause in data)
    yield f"{len(data)} known defects, {count} expectations"
