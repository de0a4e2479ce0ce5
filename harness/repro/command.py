"""``xla-harness repro``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import say
from harness.commands.parsers import output_file
from harness.commands.project import catalogue, folder_of_stacks
from harness.files import write as write_files
from harness.repro.pins import pins_of

if TYPE_CHECKING:
    from harness.repro.cases import Found
    from harness.repro.check import Ending


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("case", metavar="CASE", help="its id, as pytest prints it")
    parser.add_argument("--out", type=output_file, metavar="FILE", help="default: standard output")
    parser.add_argument("--stack", metavar="NAME", help="pin this stack's versions")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the script here, and say whether it ends as the case does; 1 if not",
    )
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="do not run the case: the header says what its expectation declares",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from harness.repro import cases, check
    from harness.repro.write import write

    stacks = catalogue(folder_of_stacks()) if options.stack else None
    pins, python = pins_of(options.stack, stacks) if stacks else ({}, "")
    selected = cases.find(options.case)
    ending = None
    write(selected, None, pins, python)  # a case that can't be a script need not run
    if options.check or not (options.no_run or options.stack):
        say(f"running {selected.case.id} ...")
        ending = check.of_case(selected.case, selected.item.config.rootpath)
    text = write(selected, None if options.stack else ending, pins, python)
    if options.out:
        write_files({options.out: text})
    else:
        sys.stdout.write(text)  # a program: what it quotes is a comment or a string in it
    if options.check:
        assert ending is not None
        return _check(selected, text, ending)
    return 0


def _check(selected: Found, text: str, ending: Ending) -> int:
    from harness.repro import check

    say("running the script ...")
    with tempfile.TemporaryDirectory(prefix="repro-") as folder:
        path = Path(folder) / "script.py"
        path.write_text(text, encoding="utf-8")
        own = check.of_script(path, selected.case, ending)
    if own.is_like(ending):
        say(f"the script ends as the case does: {own}")
        return 0
    say(f"the script ends otherwise\n  case    {ending}\n  script  {own}")
    return 1
