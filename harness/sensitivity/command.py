"""``xla-harness sensitivity``: how many planted faults the tests see."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.commands.in_stack import add_stack, continue_in, stack_named
from harness.commands.output import answer, say
from harness.commands.parsers import (
    add_json,
    budget_seconds,
    names,
    output_file,
    output_folder,
    whole_number,
)
from harness.errors import BadInputError
from harness.files import write
from harness.model.case_id import file_of

if TYPE_CHECKING:
    from harness.sensitivity.runs import Request
    from harness.sensitivity.score import Score

_LANES = ("virtual-tpu", "cpu")
_FOLDER = Path("reports/sensitivity")
_MOST = 20_000
_MOSTLY = 0.95
_TRIES = 5
_SECONDS_OF_SMALLEST = 60


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="tests, as pytest takes them")
    parser.add_argument("--lane", default=_LANES[0], metavar="NAME", help="default: %(default)s")
    add_stack(parser)
    parser.add_argument(
        "--operators", type=names, metavar="NAMES", help="which faults, by comma (default: all)"
    )
    parser.add_argument(
        "--python",
        type=names,
        default=(),
        metavar="PACKAGES",
        help="plant faults in the Python of these, as torch_xla or jax, and not in programs",
    )
    parser.add_argument(
        "--modules",
        type=Path,
        metavar="FILE",
        help="plant faults in all lines of the modules in this file, executed or not",
    )
    parser.add_argument(
        "--tries",
        type=whole_number(1, 1000),
        default=_TRIES,
        metavar="N",
        help="cases that are asked for each fault of --modules, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--budget", default="10m", metavar="TIME", help="for all, as 90s (default: %(default)s)"
    )
    parser.add_argument(
        "--most", type=whole_number(1, _MOST), default=_MOST, metavar="N", help="faults, at most"
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 10**9),
        default=0,
        metavar="N",
        help="chooses the faults (default: %(default)s)",
    )
    parser.add_argument(
        "-n",
        dest="jobs",
        type=whole_number(1, 1024),
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that run cases (default: one for each core)",
    )
    parser.add_argument(
        "--fail-under",
        type=whole_number(0, 100),
        metavar="PERCENT",
        help="exit with 1 if an area sees less, or none of its faults counts",
    )
    parser.add_argument(
        "--folder",
        type=output_folder,
        default=_FOLDER,
        metavar="DIR",
        help="for programs and logs, emptied first (default: %(default)s)",
    )
    parser.add_argument(
        "--smallest",
        type=output_file,
        metavar="FILE",
        help="write the cases that see 95 %% of the kinds of fault that all see, as --cases reads; "
        "with --modules those that execute most in --seconds",
    )
    parser.add_argument(
        "--seconds",
        type=whole_number(1, 86_400),
        metavar="N",
        help=f"for the cases of --smallest, with --modules (default: {_SECONDS_OF_SMALLEST})",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FILE",
        help="cases that run anyway, as --cases reads: --smallest adds to them what they miss",
    )
    parser.add_argument(
        "--junitxml",
        type=output_file,
        metavar="FILE",
        help="a report with the numbers of each area, for `xla-harness record`",
    )
    add_json(parser)
    parser.set_defaults(arguments=[], run=_run)


def _run(options: argparse.Namespace) -> int:
    from harness.sensitivity import score_text as shown
    from harness.sensitivity.measure import measure
    from harness.sensitivity.runs import Request
    from harness.sensitivity.sample import Sample
    from harness.sensitivity.score_report import write_report
    from harness.sensitivity.whole_modules import read_modules
    from harness.session.selection import read_cases

    operators, budget = _operators(options), budget_seconds(options.budget)
    given = frozenset(read_cases(options.beside) if options.beside else ())
    if options.seconds and not (options.modules and options.smallest):
        raise BadInputError("--seconds: expected --modules and --smallest beside it")
    if options.stack:
        _continue_in(options.stack, options)
    modules = read_modules(options.modules, options.python) if options.modules else {}
    request = Request(
        paths=[*options.paths, *options.arguments],
        lane=options.lane,
        operators=operators,
        packages=() if modules else options.python,
        budget=budget,
        sample=Sample(options.seed, options.most, given),
        jobs=options.jobs,
        folder=_emptied(options.folder).resolve(),
        modules=modules,
        tries=options.tries,
    )
    score = measure(request, say)
    seconds = options.seconds or _SECONDS_OF_SMALLEST
    wanted = options.json or options.smallest
    chosen = _smallest(score, request, seconds) if wanted else []
    answer(options, _data(score, chosen), "\n".join(shown.lines(score)))
    if options.junitxml:
        write_report(options.junitxml, score, options.lane, options.fail_under)
    if options.smallest:
        write({options.smallest: "".join(f"{case}\n" for case in chosen)})
    return 0 if options.fail_under is None else _held_to(options.fail_under, score)


def _smallest(score: Score, request: Request, seconds: float) -> list[str]:
    """Return the cases that stand for all: of whole modules, those that are soon through."""
    from harness.sensitivity.quickest import executed_places, quickest

    if request.modules:
        executed = executed_places(request, score.cost)
        return quickest(executed, score.cost, seconds, request.sample.first)
    return score.smallest(_MOSTLY, request.sample.first)


def _operators(options: argparse.Namespace) -> Sequence[str]:
    """Return the operators to plant.

    Raises BadInputError for an option that names no test, lane, package or operator.
    """
    from harness.sensitivity.answers import ANSWERS
    from harness.sensitivity.fault import STALE
    from harness.sensitivity.operators import OPERATORS
    from harness.sensitivity.python_faults import PYTHON_OPERATORS
    from harness.sensitivity.python_source import folder_of

    known = (
        tuple(PYTHON_OPERATORS)
        if options.python or options.modules
        else (*OPERATORS, STALE, *ANSWERS)
    )
    for name in () if options.stack else options.python:
        if not folder_of(name):
            raise BadInputError(f"--python {name!r}: expected an installed package")
    for name in options.operators or ():
        if name not in known:
            raise BadInputError(f"--operators {name!r}: expected some of {', '.join(known)}")
    if options.lane not in _LANES:
        raise BadInputError(f"--lane {options.lane!r}: expected one of {', '.join(_LANES)}")
    for path in options.paths:
        if not Path(file_of(path)).exists():
            raise BadInputError(f"{path}: expected a file or folder of tests")
    return options.operators or known


def _continue_in(name: str, options: argparse.Namespace) -> NoReturn:
    """Become this command in a stack's environment, whose framework compiles and is compared.

    Raises BadInputError for a stack that can't be created, or that can't compare programs.
    """
    from harness.stacks.constraints import read
    from harness.stacks.environments import Environments

    stack = stack_named(name)
    if "jaxlib" not in read(Environments().constraints(stack)):
        raise BadInputError(
            f"--stack {name}: expected a stack with jax, whose compiler executes the programs that "
            "are compared"
        )
    continue_in(stack, options)


def _held_to(least: int, score: Score) -> int:
    """Return the exit code: 1 if an area sees less than ``least`` or was not measured."""
    from harness.sensitivity.score import share

    held = score.in_all() or score.by_area()
    shares = {area: share(counts).percent for area, counts in held.items()}
    unknown = [area for area, percent in shares.items() if percent is None]
    low = [area for area, percent in shares.items() if percent is not None and percent < least]
    if unknown:
        say(f"xla-harness: no fault that counts was planted in {', '.join(unknown)}")
    if low:
        say(f"xla-harness: less than {least} % of the faults were seen in {', '.join(low)}")
    return 1 if low or unknown else 0


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _emptied(folder: Path) -> Path:
    """Return the folder without an earlier run's files; nothing else is ever removed."""
    marker = folder / "sensitivity"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise BadInputError(f"--folder {folder}: expected an empty folder, or one of this command")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    marker.touch()
    return folder


def _data(score: Any, smallest: Sequence[str]) -> dict[str, Any]:
    """Return the score as plain values."""
    from harness.sensitivity.score import share

    def rows(counted: Any) -> dict[str, Any]:
        return {
            name: {"percent": _rounded(share(counts).percent), **counts}
            for name, counts in counted.items()
        }

    return {
        f"{score.unit}s": rows(score.by_area()),
        **rows(score.in_all()),
        "operators": rows(score.by_operator()),
        "cases": rows(score.by_case()),
        "faults": [
            {
                **vars(result.fault),
                "area": result.area,
                "verdict": result.verdict,
                "seconds": result.seconds,
                "cases": list(result.cases),
                "told": result.explanation,
                "difference": list(result.difference),
            }
            for result in score.results
        ],
        "red": dict(score.red),
        "idle": list(score.idle),
        "smallest": smallest,
        "adds_nothing": score.adds_nothing(),
    }
