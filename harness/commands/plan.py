"""``xla-harness ci plan``: which stacks and cells a workflow runs, as its matrix."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import UTC, datetime

from harness.commands import project
from harness.commands.output import as_json
from harness.commands.parsers import add_folder, names
from harness.commands.step_outputs import print_outputs
from harness.history.run import parse_time
from harness.matrix.plan import cells
from harness.stacks.stack import Stack


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's own commands."""
    add_folder(parser)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    night = actions.add_parser("night", help="the stacks of a night, and when it began")
    night.add_argument("--stacks", default="all", metavar="NAMES", help="default: all releases")
    night.add_argument("--nightly", default="", metavar="STACK", help="the one that takes wheels")
    night.add_argument("--time", default="", metavar="ISO", help="of its start; default: now")
    night.set_defaults(run=_night)
    cells_parser = actions.add_parser(
        "cells", help="the cells of a stack, and their artifacts' names"
    )
    add_cell_options(cells_parser)
    cells_parser.add_argument("--stack", required=True, metavar="NAME")
    cells_parser.add_argument(
        "--wheels", default="", metavar="NAME", help="not empty: it gets wheels"
    )
    cells_parser.set_defaults(run=_cells)


def add_cell_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that, with the stack's name, decide its cells."""
    parser.add_argument("--lanes", required=True, metavar="NAMES", help="as cpu,virtual-tpu")
    parser.add_argument("--shard", type=int, default=1, metavar="COUNT", help="parts of a lane")


def with_wheels(stack: Stack) -> Stack:
    """Return the stack under the name that it has with wheels."""
    return stack if stack.folder else replace(stack, name=f"{stack.name}+wheels")


def _night(options: argparse.Namespace) -> int:
    catalogue = project.catalogue(options.folder)
    stacks = [{"stack": s.name, "wheels": ""} for s in catalogue.chosen(names(options.stacks))]
    if options.nightly:
        stacks.append({"stack": catalogue.find(options.nightly).name, "wheels": "wheels"})
    # All cells of a night have one time, so that a night which runs past midnight stays one.
    time = parse_time(options.time, "--time") if options.time else datetime.now(UTC)
    print_outputs({"stacks": as_json(stacks), "time": f"{time:%Y-%m-%dT%H:%M:%SZ}"})
    return 0


def _cells(options: argparse.Namespace) -> int:
    stack = project.catalogue(options.folder).find(options.stack)
    planned = cells(
        with_wheels(stack) if options.wheels else stack, names(options.lanes), options.shard
    )
    data = [{**cell.data, "stack": stack.name} for cell in planned]
    artifacts = [cell.artifact for cell in planned]
    print_outputs({"cells": as_json(data), "artifacts": as_json(artifacts)})
    return 0
