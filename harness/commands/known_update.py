"""``xla-harness known update``: rewrite the files of expectations from reports."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.commands import project
from harness.commands.output import answer
from harness.commands.parsers import add_folder, add_json, whole_number
from harness.errors import BadInputError
from harness.expectations import Expectations, describe, evidence, update
from harness.expectations.causes import cause_of
from harness.expectations.decide import decide
from harness.files import write
from harness.session import listing
from harness.stacks.catalogue import known_versions


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options. What ``known`` takes too may also be written before ``update``."""
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="JUnit, ours")
    parser.add_argument(
        "--expectations",
        type=Path,
        default=project.folder_of_expectations(),
        metavar="DIR",
        help="folder of expectation files (default: %(default)s, ini xla_expectations)",
    )
    cause = parser.add_mutually_exclusive_group()
    cause.add_argument(
        "--issue", metavar="OWNER/REPO#NUMBER", help="cause of what fails without an entry"
    )
    cause.add_argument("--finding", metavar="NAME", help="instead: a section of docs/findings.md")
    parser.add_argument("--reason", default="", metavar="TEXT", help="reason in the new entries")
    parser.add_argument(
        "--cases", action="append", default=[], metavar="GLOB", help="only these; may be repeated"
    )
    parser.add_argument(
        "--runs",
        type=whole_number(0, 1000),
        default=2,
        metavar="N",
        help="reports that prove a change (default: 2)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would change")
    add_folder(parser, argparse.SUPPRESS)
    add_json(parser, argparse.SUPPRESS)
    parser.set_defaults(run=_update)


def _update(options: argparse.Namespace) -> int:
    """Update the files, and return 0 when nothing is left to do by hand, else 1."""
    for name in ("stack", "cause"):
        if getattr(options, name):
            raise BadInputError(f"--{name}: expected only without update")
    if options.runs < 1:
        raise BadInputError(f"--runs {options.runs}: expected a number above 0")
    # Without stacks of its own, a project has none that are known.
    usual = project.folder_of_stacks()
    folder = None if options.folder == usual and not usual.is_dir() else options.folder
    cause, known = _cause(options), known_versions(folder)
    entries = Expectations.load(options.expectations, known, project.findings()).entries
    recorded = evidence.read(options.reports)
    decisions = decide(entries, recorded.select(options.cases), known, options.runs)
    plan = update.plan(options.expectations, entries, decisions, cause, _collect)
    update.check(plan, options.expectations, recorded.answers, [*known, *recorded.stacks])
    if not options.dry_run:
        write(plan.texts)
    left = list(describe.left(decisions, plan, options.reports, options.runs))
    text = "\n".join([*describe.changes(plan), *left])
    answer(options, describe.as_data(decisions, plan), text)
    return int(bool(left))


def _cause(options: argparse.Namespace) -> update.DeclaredCause | None:
    if options.issue is None and options.finding is None:
        if options.reason:
            raise BadInputError("--reason: expected --issue or --finding beside it")
        return None
    cause_of("the command line", options.issue, options.finding, project.findings())
    key = "finding" if options.issue is None else "issue"
    return update.DeclaredCause(key, options.issue or options.finding, options.reason)


def _collect(paths: Sequence[str]) -> Collection[str]:
    gone = [path for path in paths if not Path(path).is_file()]
    if gone:
        raise BadInputError(f"{gone[0]} is not here: expected to run where the reports' cases are")
    cases, _ = listing.cases_of(listing.collect(paths))
    return [case.id for case in cases]
