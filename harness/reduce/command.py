"""``xla-harness reduce``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from harness.commands.in_stack import add_stack, continue_in, stack_named
from harness.commands.output import answer, say
from harness.commands.parsers import add_json, budget_seconds, output_file
from harness.errors import PARTIAL, BadInputError
from harness.files import write
from harness.model.versions import ABSENT, installed

if TYPE_CHECKING:
    from harness.junit.result import Result
    from harness.reduce.issue_script import Origin
    from harness.reduce.trial import ProgramEnding

_OUT = Path("reports/reduced.py")
_OF_NUMBERS = ("numbers", "verification")  # the layers of a case that says what it got
_FILES = (".mlir", ".hlo", ".txt", ".pb")
_OLDEST = "0.6.1"  # whose client takes what these scripts give it


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "source",
        metavar="CASE|FILE",
        help="a test's id, or a program: StableHLO (.mlir), HLO text (.hlo, .txt) or a "
        "serialised HloModuleProto (.pb)",
    )
    parser.add_argument("--lane", default="", metavar="NAME", help="where the case runs")
    add_stack(parser)
    parser.add_argument(
        "--budget", default="5m", metavar="TIME", help="for the search (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=output_file,
        metavar="FILE",
        help=f"the script, with the program beside it as .mlir (default: {_OUT})",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    budget = budget_seconds(options.budget)
    if options.stack:
        continue_in(stack_named(options.stack), options)
    version = installed("jaxlib")
    if version == ABSENT or Version(version) < Version(_OLDEST):
        raise BadInputError(f"reduce: expected jaxlib {_OLDEST} or newer, it is {version}")
    from harness.reduce import issue_script
    from harness.reduce.deciding import Deciding, deciding
    from harness.reduce.search import Search
    from harness.reduce.stablehlo import bare, count, operation_names

    start = time.monotonic()

    def tell(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - start), 60)
        say(f"[{minutes}:{seconds:02}] {text}")

    text, ending, failure = _failing(options)
    was = count(bare(text))
    tell(f"{was} instructions: {ending.kind}: {ending.text}")
    text, is_done = Search(ending, start + budget, tell).smallest(text)
    (ending,) = _endings([text])
    out: Path = options.out or _OUT
    out.parent.mkdir(exist_ok=True)
    write({out.with_suffix(".mlir"): text})
    decides = Deciding((), "")
    if is_done:
        tell("asking XLA without each of its passes")
        decides = deciding(text, ending)
    about = issue_script.Origin(options.source, failure, ending, decides, was)
    write({out: issue_script.script(text, about)})
    summary = _summary(about, count(text), out, time.monotonic() - start)
    answer(options, _facts(about, operation_names(text)), summary)
    if not is_done:
        say(
            f"the budget has ended; to go on: xla-harness reduce {out.with_suffix('.mlir')}"
            f" --out {out}"
        )
    return 0 if is_done else PARTIAL


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
    return "\n".join([*lines, f"script    {out}, for an upstream issue"])


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


def _failing(options: argparse.Namespace) -> tuple[str, ProgramEnding, str]:
    """Return a program that fails, how it does, and how its case does.

    Raises BadInputError if none does alone, or not always so.
    """
    path = Path(options.source)
    if path.suffix in _FILES and "::" not in options.source:
        from harness.reduce.program_files import read

        if not path.is_file():
            raise BadInputError(f"{path}: expected a program, there is no such file")
        text = read(path)
        (ending,) = _endings([text])
        if ending.kind in ("right", "ran"):
            raise BadInputError(f"{path}: nothing to reduce: {_WHY[ending.kind]}")
        return _twice(text, ending, options.source), ending, ""
    from harness.reduce.recording import record

    say(f"running {options.source} ...")
    recorded = record(options.source, options.lane)
    result = recorded.result
    if not result.signature:
        raise BadInputError(f"{result.key}: nothing to reduce: {result.outcome}")
    failure = f"{result.layer}: {result.signature}"
    if not recorded.programs:
        raise BadInputError(
            f"{result.key}: no program to reduce: it failed before it compiled one\n  {failure}"
        )
    endings = [_endings([text])[0] for text in recorded.programs]
    for text, ending in zip(recorded.programs, endings, strict=True):
        if _is_like(result, ending):
            return _twice(text, ending, result.key), ending, failure
    reasons = sorted({_WHY.get(ending.kind, f"{ending.kind}: {ending.text}") for ending in endings})
    raise BadInputError(
        f"{result.key}: none of its {len(endings)} programs fails alone as the case does\n  "
        + "\n  ".join([failure, *reasons])
        + "\nWhat builds the programs, another plugin, or what the test expects decides: "
        "xla-harness repro writes a case of lane cpu as a script"
    )


def _is_like(result: Result, ending: ProgramEnding) -> bool:
    """Return whether a program's ending can be the failure of its case.

    A case whose numbers are wrong does not fail because XLA for CPUs refuses another device's call.
    """
    if ending.kind in _WHY:
        return False
    return not result.layer or (ending.kind == "wrong") == (result.layer in _OF_NUMBERS)


_WHY = {
    "right": "XLA computes what the operations say.",
    "ran": "It runs, and nothing here can say what its numbers should be.",
    "invalid": "It is no valid StableHLO.",
}


def _twice(text: str, ending: ProgramEnding, source: str) -> str:
    (again,) = _endings([text])
    if again.signature != ending.signature:
        raise BadInputError(
            f"{source}: expected a program that always fails in one way, it is flaky: first "
            f"{ending.kind}, then {again.kind}"
        )
    return text


def _endings(texts: list[str]) -> list[ProgramEnding]:
    from harness.reduce.trial import endings

    return endings(texts)
