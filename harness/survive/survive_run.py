"""The run of ``survive``: both sides, what a rerun confirms, and the answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from harness.commands.output import answer, say
from harness.errors import BadInputError
from harness.files import write
from harness.matrix.home import RESULTS
from harness.reuse.result_store import ResultStore
from harness.stacks.environments import cache_folder
from harness.survive import survival_report
from harness.survive.side import SideProcess, SideRun
from harness.survive.side_dependencies import dependencies
from harness.survive.side_reuse import SideReuse
from harness.survive.survival import (
    Proof,
    check_platforms,
    confirmed,
    findings,
    in_question,
    proof,
)
from harness.survive.twin_environment import Installed, Twin, requirements, twin
from harness.verdicts.finding import Finding
from harness.verdicts.words import Verdict

_TIMES, _MORE = 10, 120.0  # of what the base took, and seconds besides, in which a side must end


def run(options: argparse.Namespace) -> int:
    """Run the tests on both sides, answer, and return the exit code."""
    python: Path = options.python.absolute()  # what it links to has other packages
    if options.badge:  # until there is an answer; that of an earlier run must not stay
        write({options.badge: survival_report.badge(options.candidate)})
    wanted = requirements(options.candidate)
    installed = Installed.of(python)
    if "pytest" not in installed.versions:
        raise BadInputError(f"no pytest among the packages of {python}: install it there first")
    other = twin(python, wanted, installed, say)
    store = ResultStore(cache_folder() / RESULTS)
    written = [options.out, options.markdown, options.badge, options.json]
    outputs = [Path(each).absolute() for each in written if each]

    def reuse(name: str, interpreter: Path) -> SideReuse:
        process = SideProcess(name, interpreter, options.out / name, options.arguments, say)
        words = interpreter, options.arguments, installed.editable, outputs
        return SideReuse(process, store, partial(dependencies, *words), fresh=options.fresh)

    sides = [reuse("base", python), reuse("candidate", other.python)]
    base = sides[0].run()
    if not any(result.measured for result in base.results.values()):
        raise BadInputError(
            f"no test ran with what {python} has installed, so there is nothing to compare; "
            f"pytest's last lines:\n{base.last_lines}"
        )
    limit = _TIMES * base.seconds + _MORE
    candidate = sides[1].run(limit)
    proofs = list(_proofs(wanted, other, base, candidate))
    check_platforms(base, candidate)
    compared = _confirmed(findings(base, candidate), sides, (base, candidate), limit)
    survival = survival_report.Survival(
        compared, base, candidate, proofs, other.moved, list(wanted)
    )
    if options.markdown:
        write({options.markdown: survival_report.markdown(survival)})
    if options.badge:
        write({options.badge: survival_report.badge(options.candidate, survival)})
    answer(options, survival_report.as_plain(survival), "\n".join(survival_report.lines(survival)))
    say(f"output of both: {options.out}")
    if store.unwritten:
        say(f"results can't be kept: {store.unwritten}")
    return survival.exit_code


def _proofs(
    wanted: Mapping[str, str], other: Twin, base: SideRun, candidate: SideRun
) -> Iterator[tuple[Proof | None, Proof | None]]:
    """Yield which version of each package the tests had loaded, on both sides."""
    for name in wanted:
        (was, now), modules = other.moved[name], other.modules_of(name)
        before = proof(base, name, modules, was, None)
        after = proof(candidate, name, modules, now, other.folder)
        if after is None and candidate.passed:
            raise BadInputError(
                f"no test process had loaded {name}, so these tests say nothing about it; "
                f"pytest's last lines:\n{candidate.last_lines}"
            )
        yield before, after


def _confirmed(
    first: Sequence[Finding],
    sides: Sequence[SideReuse],
    runs: tuple[SideRun, SideRun],
    limit: float,
) -> Sequence[Finding]:
    """Return the findings after a rerun of what is worse; forget a side that is not steady."""
    only = [each.key for each in first if in_question(each)]
    if all(run.reused for run in runs):  # what failed then has failed again
        only = [each.key for each in first if each.verdict == Verdict.SLOWER]
    if not only:
        return first
    say(f"running {len(only)} tests again on both")
    base, candidate = (side.process.run(only, limit) for side in sides)
    compared = list(confirmed(first, base, candidate))
    if not runs[0].agrees_with(base):
        sides[0].forget()
    if any(each.verdict == Verdict.FLAKY for each in compared):
        sides[1].forget()
    return compared
