"""``xla-harness sensitivity``: how many planted faults the tests see."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from pathlib import Path
from typing import Any

from harness.commands.output import answer, say
from harness.commands.parsers import add_json, names, output_file, output_folder, whole_number
from harness.errors import BadInputError
from harness.files import write

_LANE = "virtual-tpu"
_FOLDER = Path("reports/sensitivity")
_BUDGET = re.compile(r"([0-9]{1,6})(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MOST = 20_000
_MOSTLY = 0.95


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="tests, as pytest takes them")
    parser.add_argument("--lane", default=_LANE, metavar="NAME", help="default: %(default)s")
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
        help="exit with 1 if an area sees less",
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
        help="write the cases that see 95 %% of the kinds of fault that all see, as --cases reads",
    )
    add_json(parser)
    parser.set_defaults(arguments=[], run=_run)


def _run(options: argparse.Namespace) -> int:
    from harness.render import sensitivity as shown
    from harness.sensitivity.fault import STALE
    from harness.sensitivity.operators import OPERATORS
    from harness.sensitivity.python_faults import PYTHON_OPERATORS, folder_of
    from harness.sensitivity.run import Request, measure
    from harness.sensitivity.score import share

    known = tuple(PYTHON_OPERATORS) if options.python else (*OPERATORS, STALE)
    for name in options.python:
        if not folder_of(name):
            raise BadInputError(f"--python {name!r}: expected an installed package")
    for name in options.operators or ():
        if name not in known:
            raise BadInputError(f"--operators {name!r}: expected some of {', '.join(known)}")
    if options.lane != _LANE:
        raise BadInputError(
            f"--lane {options.lane!r}: expected {_LANE}: faults are planted by its plugin"
        )
    for path in options.paths:
        if not Path(path.partition("::")[0]).exists():
            raise BadInputError(f"{path}: expected a file or folder of tests")
    request = Request(
        paths=[*options.paths, *options.arguments],
        lane=options.lane,
        operators=options.operators or known,
        packages=options.python,
        budget=_seconds(options.budget),
        seed=options.seed,
        most=options.most,
        jobs=options.jobs,
        folder=_emptied(options.folder).resolve(),
    )
    score = measure(request, say)
    answer(options, _data(score), "\n".join(shown.lines(score)))
    if options.smallest:
        write({options.smallest: "".join(f"{case}\n" for case in sorted(score.smallest(_MOSTLY)))})
    least = options.fail_under
    low = [area for area, counts in score.by_area().items() if share(counts).percent < (least or 0)]
    if low:
        say(f"xla-harness: less than {least} % of the faults were seen in {', '.join(low)}")
    return 1 if low else 0


def _seconds(text: str) -> float:
    match = _BUDGET.fullmatch(text)
    if match is None or not int(match[1]):
        raise BadInputError(f"--budget {text!r}: expected seconds, minutes or hours, as 90s or 10m")
    return int(match[1]) * _SECONDS[match[2]]


def _emptied(folder: Path) -> Path:
    """The folder, without what an earlier run left; nothing else is ever removed."""
    marker = folder / "sensitivity"
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise BadInputError(f"--folder {folder}: expected an empty folder, or one of this command")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    marker.touch()
    return folder


def _data(score: Any) -> dict[str, Any]:
    """The score, as JSON has it."""
    from harness.sensitivity.score import share

    def rows(counted: Any) -> dict[str, Any]:
        return {
            name: {"percent": round(share(counts).percent, 1), **counts}
            for name, counts in counted.items()
        }

    return {
        "areas": rows(score.by_area()),
        "operators": rows(score.by_operator()),
        "faults": [
            {
                **vars(one.fault),
                "area": one.area,
                "verdict": one.verdict,
                "seconds": one.seconds,
                "told": one.told,
                "difference": list(one.difference),
            }
            for one in score.answers
        ],
        "red": dict(score.red),
        "idle": list(score.idle),
        "smallest": score.smallest(_MOSTLY),
        "adds_nothing": score.adds_nothing(),
    }
