"""``xla-harness reduce``."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from harness.commands.in_stack import add_stack, continue_in, stack_named
from harness.commands.output import answer, say, show
from harness.commands.parsers import add_json, budget_seconds, output_file
from harness.errors import PARTIAL, BadInputError
from harness.files import write
from harness.junit.properties import STACK_VARIABLE
from harness.model.versions import ABSENT, installed

if TYPE_CHECKING:
    from harness.reduce.issue_script import Origin

_OUT = Path("reports/reduced.py")
_OLDEST = "0.4.35"  # of the stacks that have it


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "source",
        metavar="CASE|FILE",
        help="a test's id, a report (.xml) in which one failed, or a program: StableHLO (.mlir), "
        "HLO text (.hlo, .txt) or a serialised HloModuleProto (.pb)",
    )
    parser.add_argument(
        "--lane",
        default="",
        metavar="NAME",
        help="where the case runs, or for which a program in a file is compiled",
    )
    parser.add_argument(
        "--topology",
        default="",
        metavar="T",
        help="where the case runs, or for which a program in a file is compiled",
    )
    add_stack(parser)
    parser.add_argument(
        "--base", default="", metavar="NAME", help="a stack with which the program does not fail"
    )
    parser.add_argument(
        "--has",
        default="",
        metavar="REGEX",
        help="keep what the compiled program has, in the place of how it ends",
    )
    parser.add_argument(
        "--budget", default="5m", metavar="TIME", help="for the search (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=output_file,
        metavar="FILE",
        help=f"the script, beside it the program (.mlir) and an issue (.md) (default: {_OUT})",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    budget = budget_seconds(options.budget)
    base = _base(options) if options.base else None
    if options.source.partition("::")[0].endswith(".xml"):
        _use_report(options)
    if options.stack:
        if base:
            options.words = [*options.words, f"--base={base[0]}"]
        continue_in(stack_named(options.stack), options)
    version = installed("jaxlib")
    if version == ABSENT or Version(version) < Version(_OLDEST):
        raise BadInputError(f"reduce: expected jaxlib {_OLDEST} or newer, it is {version}")
    from harness.reduce import issue_script
    from harness.reduce.deciding import Deciding, deciding
    from harness.reduce.failing import Question, failing
    from harness.reduce.search import Search
    from harness.reduce.stablehlo import bare, count, operation_names

    start = time.monotonic()

    def tell(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        say(f"[{minutes}:{seconds:02}] {text}")

    case = failing(options.source, Question(options.lane, options.has, base), options.topology)
    was = count(bare(case.text))
    tell(f"{was} instructions: {case.ending.kind}: {case.ending.text}")
    text, is_done = Search(case.ending, start + budget, tell, case.ask).smallest(case.text)
    (ending,) = case.ask([text])
    if ending.signature != case.ending.signature:  # it does so most of the time
        ending = case.ending
    out: Path = options.out or _OUT
    _write_program(out.with_suffix(".mlir"), text)
    decides = Deciding((), "")
    if is_done:
        tell("asking XLA without each of its passes")
        try:
            decides = deciding(text, ending, case.ask)
        except KeyboardInterrupt:
            is_done = False
    about = issue_script.Origin(case, ending, decides, was)
    write(
        {
            out: issue_script.script(text, about),
            out.with_suffix(".md"): issue_script.issue(text, about),
        }
    )
    summary = _summary(about, count(text), out, time.monotonic() - start)
    answer(options, _facts(about, operation_names(text)), summary)
    if not is_done:
        say(
            f"the budget has ended; to go on: xla-harness reduce {out.with_suffix('.mlir')}"
            f" --out {out}"
        )
    return 0 if is_done else PARTIAL


def _write_program(path: Path, text: str) -> None:
    """Write the best program so far; show it if it can't be written, as on a full disk."""
    path.parent.mkdir(exist_ok=True)
    try:
        write({path: text})
    except BadInputError:
        show(text)
        raise


def _use_report(options: argparse.Namespace) -> None:
    """Have the options name the case that failed in a report, where it did."""
    from harness.reduce.recording import failed_case

    result, stack = failed_case(options.source)
    words = [result.id if word == options.source else word for word in options.words]
    for name, value in (("lane", result.lane), ("topology", result.topology)):
        if value and not getattr(options, name):
            setattr(options, name, value)
            words.append(f"--{name}={value}")
    options.source, options.words = result.id, words
    if stack != os.environ.get(STACK_VARIABLE, ""):
        options.stack = options.stack or stack


def _base(options: argparse.Namespace) -> tuple[str, Mapping[str, str]]:
    """Return the base's Python and variables; a stack's process is given the path of the former."""
    if os.sep in options.base:
        return options.base, os.environ
    from harness.matrix.cell import variables
    from harness.stacks.environments import Environments

    environments, stack = Environments(), stack_named(options.base)
    python = environments.create(stack, say).python
    return str(python), variables(stack.name, environments.cache)


def _summary(about: Origin, number: int, out: Path, seconds: float) -> str:
    from harness.reduce.issue_script import flag_text

    lines = [
        f"{about.was} instructions -> {number} in {seconds:.0f} s",
        f"{about.ending.kind:8}  {about.ending.text}",
    ]
    if about.deciding.brought_by:
        lines.append(f"wrong after pass {about.deciding.brought_by}")
    if flags := about.deciding.flags:
        lines.append(f"not so with {', or with '.join(map(flag_text, flags))}")
    return "\n".join([*lines, f"script    {out}, in an issue's text: {out.with_suffix('.md')}"])


def _facts(about: Origin, operations: Sequence[str]) -> Mapping[str, object]:
    from harness.reduce.issue_script import flag_text

    return {
        "kind": about.ending.kind,
        "detail": about.ending.text,
        "was": about.was,
        "count": len(operations),
        "operations": operations,
        "brought_by": about.deciding.brought_by,
        "flags": [flag_text(flag) for flag in about.deciding.flags],
    }
