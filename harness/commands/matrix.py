"""``xla-harness matrix``: the suites on several stacks and lanes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.commands import project
from harness.commands.output import answer, say
from harness.commands.parsers import (
    add_folder,
    add_json,
    names,
    output_folder,
    whole_number,
)
from harness.commands.partial import told
from harness.files import write
from harness.junit.report import Report
from harness.lanes import lane_named
from harness.matrix import pool
from harness.matrix.cell import Cell
from harness.matrix.home import paths_in
from harness.render import overview
from harness.session.selection import QUICK_LANE, Shard
from harness.stacks import wheels
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack

LANES = "cpu,virtual-tpu"
REPORTS = Path("reports/matrix")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--stacks", required=True, metavar="NAMES", help="as 2.5.1,2.9.0, or all")
    add_run_options(parser)
    parser.add_argument("--shard", metavar="NUMBER/COUNT", help="one part of each cell, as 2/5")
    add_wheels_option(parser)
    parser.add_argument(
        "--pytest", default="", metavar="TEXT", help="more arguments for pytest, in one text"
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        default=REPORTS,
        help=f"folder for reports (default: {REPORTS})",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def add_wheels_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that makes stacks from the user's own wheels."""
    parser.add_argument(
        "--wheels", default="", metavar="DIR", help="wheels in place of the stacks' own"
    )


def add_run_options(
    parser: argparse.ArgumentParser, lanes: str | None = LANES, shown_default: str = LANES
) -> None:
    """Add the options of every command that runs the suites; ``shown_default`` is for the help."""
    parser.add_argument("--lanes", default=lanes, metavar="NAMES", help=f"default: {shown_default}")
    add_cell_options(parser)
    parser.epilog = "Arguments after -- go to pytest; if none of them is a path, it runs suites/."


def add_cell_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that runs cells."""
    parser.add_argument(
        "--jobs",
        type=whole_number(0, 1000),
        default=0,
        metavar="N",
        help="cells at a time (default: one a core)",
    )
    parser.add_argument("--fresh", action="store_true", help="run what has an answer, too")
    add_folder(parser)
    parser.set_defaults(arguments=[])


def cells_of(
    stacks: Sequence[Stack],
    options: argparse.Namespace,
    folder: Path,
    shard: Shard | None = None,
    *,
    once: bool = False,
) -> list[Cell]:
    """Return a cell for each stack and lane, checked before anything runs.

    With ``once`` each case runs only on the first of the lanes that it can run on.
    """
    lanes = names(options.lanes)
    for lane in lanes:
        lane_named(lane)
    arguments = with_paths(options.arguments)
    quick = project.quick_cases()
    return [
        Cell(
            *(stack, lane, folder / stack.slug, arguments),
            shard=shard,
            first=quick if lane == QUICK_LANE else (),
            elsewhere=lanes[:place] if once else (),
        )
        for stack in stacks
        for place, lane in enumerate(lanes)
    ]


def with_paths(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments for pytest, with the suites added if none of them is a path."""
    if paths_in(arguments):
        return tuple(arguments)
    return ("suites", *arguments)


def _data(
    columns: Sequence[tuple[str, Sequence[Report]]], died: Mapping[str, str]
) -> dict[str, Any]:
    """Return each stack's results, and the cells that ended without a report, as plain values."""
    stacks = [
        {
            "name": name,
            "versions": dict(reports[0].versions) if reports else {},
            "cases": [
                {"case": result.key, "outcome": str(result.outcome), "layer": result.layer}
                for report in reports
                for result in report.results.values()
            ],
        }
        for name, reports in columns
    ]
    return {"stacks": stacks, "no_answer": dict(died)}


def _run(options: argparse.Namespace) -> int:
    catalogue = project.catalogue(options.folder)
    stacks = catalogue.chosen(names(options.stacks))
    stacks = [wheels.given(stack, options.wheels) for stack in stacks]
    options.arguments = [*options.arguments, *shlex.split(options.pytest)]
    shard = Shard.parse(options.shard) if options.shard else None
    done = pool.run(
        cells_of(stacks, options, options.out, shard),
        Environments(),
        jobs=options.jobs,
        fresh=options.fresh,
        say=say,
    )
    columns = [
        (stack.name, [cell.read() for cell in done.finished if cell.stack == stack])
        for stack in stacks
    ]
    rows = project.upstream_rows()
    answer(options, _data(columns, done.died), "\n".join(overview.text(columns, rows)))
    write({options.out / "overview.md": overview.markdown(columns, rows)})
    for cell in done.cells:
        if str(cell) in done.died:
            write({cell.cause: f"{done.died[str(cell)]}\n"})
    done.check()
    bad = sum(
        r.outcome.is_bad for _, reports in columns for x in reports for r in x.results.values()
    )
    faults = [fault for _, reports in columns for x in reports for fault in x.faults]
    left_out = told(faults)
    return 1 if bad else left_out
