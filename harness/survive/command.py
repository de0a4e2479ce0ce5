"""``xla-harness survive``: which of a project's tests break when a package moves?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands.parsers import add_json, output_file, output_folder

_OUT = Path("reports/survive")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "candidate",
        nargs="+",
        metavar="REQUIREMENT",
        help="what moves, as jax==0.12.0.1; arguments for pytest go after --",
    )
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        metavar="FILE",
        help="interpreter that runs the tests now (default: the one that runs this command)",
    )
    parser.add_argument(
        "--markdown", type=output_file, metavar="FILE", help="summary for a pull request or a job"
    )
    parser.add_argument(
        "--badge",
        type=output_file,
        metavar="FILE",
        help="the answer as a badge of shields.io; it is also written if there is none",
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        default=_OUT,
        metavar="DIR",
        help="for the output of both runs (default: %(default)s)",
    )
    parser.add_argument("--fresh", action="store_true", help="run all tests on both sides")
    add_json(parser)
    parser.set_defaults(run=_run, arguments=[])


def _run(options: argparse.Namespace) -> int:
    from harness.survive.survive_run import run

    return run(options)
