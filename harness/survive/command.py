"""``xla-harness survive``: which of a project's tests break when a package moves?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands.output import answer, say
from harness.commands.parsers import add_json, output_file, output_folder
from harness.errors import BadInputError
from harness.files import write

_OUT = Path("reports/survive")
_LIMIT = (10, 120.0)  # times what the base took, and seconds


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
    add_json(parser)
    parser.set_defaults(run=_run, arguments=[])


def _run(options: argparse.Namespace) -> int:
    from harness.survive import survival_report
    from harness.survive.side import SideProcess, SurviveSide
    from harness.survive.survival import confirmed, findings, in_question, proof
    from harness.survive.twin_environment import Installed, requirements, twin

    python: Path = options.python.absolute()  # what it links to has other packages
    if options.badge:  # until there is an answer; that of an earlier run must not stay
        write({options.badge: survival_report.badge(options.candidate)})
    wanted = requirements(options.candidate)
    installed = Installed.of(python)
    if "pytest" not in installed.versions:
        raise BadInputError(f"no pytest among the packages of {python}: install it there first")
    other = twin(python, wanted, installed, say)
    packages = {*wanted, *(name for name in other.moved if name in installed.versions)}
    sides = [
        SideProcess(SurviveSide("base", python, options.out / "base", packages), say),
        SideProcess(
            SurviveSide("candidate", other.python, options.out / "candidate", packages), say
        ),
    ]
    say("running the tests with what is installed")
    base = sides[0].run(options.arguments)
    if not any(result.measured for result in base.results.values()):
        raise BadInputError(
            f"no test ran with what {python} has installed, so there is nothing to compare; "
            f"pytest's last lines:\n{base.last_lines}"
        )
    say(f"{len(base.results)} tests in {base.seconds:.0f} s; running them with the candidate")
    times, more = _LIMIT
    candidate = sides[1].run(options.arguments, limit=times * base.seconds + more)
    proofs = []
    for name in wanted:
        was, now = other.moved[name]
        proofs.append((proof(base, name, was, None), proof(candidate, name, now, other.folder)))
        if proofs[-1][1] is None and candidate.passed:
            raise BadInputError(
                f"no test process had loaded {name}, so these tests say nothing about it; "
                f"pytest's last lines:\n{candidate.last_lines}"
            )
    compared = findings(base, candidate)
    if only := [each.key for each in compared if in_question(each)]:
        say(f"running {len(only)} tests again on both")
        limit = times * base.seconds + more
        reruns = [side.run(options.arguments, only, limit) for side in sides]
        compared = list(confirmed(compared, *reruns))
    survival = survival_report.Survival(
        compared, base, candidate, proofs, other.moved, list(wanted)
    )
    if options.markdown:
        write({options.markdown: survival_report.markdown(survival)})
    if options.badge:
        write({options.badge: survival_report.badge(options.candidate, survival)})
    answer(options, survival_report.as_plain(survival), "\n".join(survival_report.lines(survival)))
    say(f"output of both: {options.out}")
    return survival.exit_code
