"""``xla-harness qualify``: may one move from a stack to another?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.commands.matrix import REPORTS, add_run_options, cells_of, with_paths
from harness.commands.output import annotate, answer, say
from harness.commands.parsers import Commands, add_json, output_file, output_folder, whole_number
from harness.commands.partial import told
from harness.commands.project import upstream_rows
from harness.commands.query import tell
from harness.errors import BadInputError
from harness.files import write
from harness.history.recorded import recorded
from harness.history.store import History
from harness.junit.report import Report, read_all
from harness.matrix import run
from harness.matrix.qualify import Runner, attribute, differing_cases
from harness.render import comparison_github, comparison_text
from harness.render.comparison_json import as_data
from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack
from harness.verdicts import allow
from harness.verdicts.compare import compare, decide
from harness.verdicts.findings import Comparison
from harness.verdicts.since import find_reports
from harness.verdicts.upstream import Row

OUT = Path("reports/qualify")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "qualify", help="one verdict on moving from a stack to another, and what carries it"
    )
    parser.add_argument(
        "base", metavar="BASE", help="a stack, a report, a folder of reports, or a recorded run"
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="the same")
    add_run_options(parser)
    parser.add_argument("--allow", type=Path, metavar="FILE", help="what was signed off")
    parser.add_argument(
        "--history", metavar="DIR", help="BASE is a run of it: a name, or latest of the same stack"
    )
    parser.add_argument(
        "--annotations", action="store_true", help="print GitHub's ::error lines too"
    )
    parser.add_argument(
        "--markdown", type=output_file, metavar="FILE", help="summary for a pull request"
    )
    add_json(parser)
    parser.add_argument(
        "--reruns",
        type=whole_number(0, 100),
        default=2,
        metavar="N",
        help="of what differs; default: 2",
    )
    parser.add_argument("--no-attribution", action="store_true", help="don't swap components")
    parser.add_argument(
        "--reports", type=output_folder, default=REPORTS, help=f"of runs; {REPORTS}"
    )
    parser.add_argument("--out", type=output_folder, default=OUT, help=f"of the rest; {OUT}")
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class _Sides:
    """Base and candidate, each with its reports and, unless those were given, its stack."""

    reports: Sequence[Sequence[Report]]
    stacks: Sequence[Stack | None]
    rows: tuple[Row, ...]
    faults: Sequence[str]  # what of the reports can't be read

    def compare(self, reruns: Sequence[Sequence[Report]] = ((), ())) -> Comparison:
        (base, candidate), (again_base, again) = self.reports, reruns
        return compare(base, candidate, again_base, again, self.rows)


def _run(options: argparse.Namespace) -> int:
    entries = allow.load(options.allow, datetime.now(UTC).date()) if options.allow else ()
    sides = _sides(options)
    comparison = sides.compare()
    runner = _runner(options, comparison)
    comparison = _with_reruns(sides, comparison, runner, options.reruns)
    base, candidate = sides.stacks
    if base and candidate and not options.no_attribution:
        comparison = attribute(comparison, base, candidate, runner)
    allowed = allow.apply(entries, comparison)
    answer(
        options, as_data(comparison, allowed), "\n".join(comparison_text.lines(comparison, allowed))
    )
    if options.annotations:
        annotate(comparison_github.annotation_lines(comparison, allowed))
    target = options.markdown or runner.out / "summary.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    write({target: comparison_github.summary(comparison, allowed)})
    say(f"summary: {target}")
    left_out = told(sides.faults)
    return decide(comparison, allowed.entries.keys()).exit_code or left_out


def _reports(name: str) -> tuple[list[Report], list[str]]:
    """The reports of a file or a folder, and what can't be read; none for a stack's name."""
    path = Path(name)
    if path.suffix == ".xml":
        return read_all([path])
    return find_reports(path) if path.is_dir() else ([], [])


def _sides(options: argparse.Namespace) -> _Sides:
    """Both sides, run now where a stack was named."""
    named = (options.base, options.candidate)
    read = [_reports(name) for name in named[bool(options.history) :]]
    given = [reports for reports, _ in read]
    if options.history:
        stack = next((report.stack for report in given[0] if report.stack), options.candidate)
        history = History(options.history)
        given.insert(0, [recorded(history, options.base, stack)])
        tell(history)
    stacks = [
        None if reports else Catalogue(options.folder).find(name)
        for reports, name in zip(given, named, strict=True)
    ]
    cells = cells_of([stack for stack in stacks if stack], options, options.reports)
    done = run.Done([], {})
    if cells:
        done = run.run(cells, Environments(), jobs=options.jobs, fresh=options.fresh, say=say)
    if done.died:
        raise BadInputError(f"no answer from {', '.join(done.died)}: the same command continues")
    reports = [
        reports or [cell.read() for cell in done.finished if cell.stack == stack]
        for reports, stack in zip(given, stacks, strict=True)
    ]
    rows = upstream_rows()
    return _Sides(reports, stacks, rows, [fault for _, faults in read for fault in faults])


def _runner(options: argparse.Namespace, comparison: Comparison) -> Runner:
    names = f"{comparison.base.name}..{comparison.candidate.name}"
    return Runner(
        Environments(),
        options.out / names,
        with_paths(options.arguments),
        say,
        options.jobs,
        options.fresh,
    )


def _with_reruns(sides: _Sides, comparison: Comparison, runner: Runner, count: int) -> Comparison:
    """The comparison once what differs was run again, so that flaky cases show themselves."""
    cases = differing_cases(comparison)
    stacks = [stack for stack in sides.stacks if stack]
    if not cases or not stacks:
        return comparison
    reruns: list[list[Report]] = [[], []]
    for number in range(1, count + 1):
        say(f"rerun {number} of {count}: {len(cases)} cases that differ")
        found = runner.reports(stacks, cases, f"rerun-{number}")
        for reports, stack in zip(reruns, sides.stacks, strict=True):
            reports.extend(found[stack.name] if stack else [])
    return sides.compare(reruns)
