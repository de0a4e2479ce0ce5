"""``xla-harness since``: which stacks get an upstream issue wrong."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from harness.commands import project
from harness.commands.output import answer
from harness.commands.parsers import add_json
from harness.commands.partial import told
from harness.junit.report import Report
from harness.render import since_text as shown
from harness.verdicts.since import Declarations, find_reports, timelines

_REPORTS = Path("reports/matrix")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    written = "pytorch/xla#8854, its address, xla#8854 or 8854"
    parser.add_argument("issue", metavar="ISSUE", help=written)
    parser.add_argument(
        "--reports", type=Path, metavar="DIR", help=f"default: {_REPORTS}, if there are any"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    reports, faults = list[Report](), list[str]()
    if options.reports or any(_REPORTS.rglob("*.xml")):
        reports, faults = find_reports(options.reports or _REPORTS)
    stacks = project.folder_of_stacks()
    declared = Declarations(project.declared(stacks).entries, _versions(stacks))
    answers = timelines(options.issue, reports, project.upstream_rows(), declared)
    answer(
        options,
        [dataclasses.asdict(timeline) for timeline in answers],
        "\n".join(shown.lines(answers)),
    )
    return told(faults)


def _versions(folder: Path) -> dict[str, dict[str, str]]:
    """Return the versions of the resolved stacks, one stack for each version of its framework."""
    from harness.stacks.catalogue import versions_of

    versions: dict[tuple[str, str], tuple[str, dict[str, str]]] = {}
    for stack in project.catalogue(folder).every:
        if stack.where is not None and stack.where.with_suffix(".txt").exists():
            place = stack.framework, str(stack.version)
            if place not in versions or stack.extends is None:
                versions[place] = stack.name, versions_of(stack)
    return dict(versions.values())
