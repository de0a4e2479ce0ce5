"""``xla-harness qualify``: may one move from a stack to another?"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import project
from harness.commands.matrix import LANES, REPORTS, add_run_options, cells_of, with_paths
from harness.commands.output import STDOUT, annotate, as_json, say, show
from harness.commands.parsers import add_json, output_file, output_folder, whole_number
from harness.commands.partial import told
from harness.commands.query import name_set_aside
from harness.errors import INTERRUPTED
from harness.files import write
from harness.junit.report import Report, read_all
from harness.lanes import has_needed, lane_named
from harness.matrix.qualify import Effort, Qualification, comparisons, folder_of
from harness.matrix.quick import divided
from harness.matrix.runner import Runner
from harness.matrix.sizes import can_have
from harness.render import comparison_github, comparison_text
from harness.render.comparison_json import as_data
from harness.session.selection import QUICK_LANE
from harness.stacks.environments import Environments
from harness.verdicts import allow
from harness.verdicts.compare import decide
from harness.verdicts.comparison import Comparison, Open
from harness.verdicts.since import find_reports

if TYPE_CHECKING:
    from harness.verdicts.allow_file import AllowEntry

OUT = Path("reports/qualify")
# The virtual TPU asks more than the frameworks' own CPU clients: clients, discoveries, kernels.
ONCE = "virtual-tpu,cpu"
# What libtpu compiles is another question, so the same test may run there too.
COMPILED = "tpu-aot"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "base", metavar="BASE", help="a stack, a report, a folder of reports, or a recorded run"
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="the same")
    add_run_options(
        parser,
        None,
        f"{ONCE}, each case on the first that it can run on, and {COMPILED} where both have libtpu",
    )
    parser.add_argument("--allow", type=Path, metavar="FILE", help="list of what was signed off")
    parser.add_argument(
        "--history",
        metavar="DIR",
        help="where BASE is recorded, by its name, or as latest: of the same stack",
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
        default=1,
        metavar="N",
        help="how often representatives of what differs run again (default: 1)",
    )
    parser.add_argument(
        "--representatives",
        type=whole_number(1, 1_000_000),
        default=3,
        metavar="N",
        help="cases of each cause to rerun; all of a cause if one is flaky (default: 3)",
    )
    parser.add_argument(
        "--every-case",
        action="store_true",
        help="also run on BASE the cases that are expected to end there as on CANDIDATE, and rerun "
        "expected differences",
    )
    parser.add_argument(
        "--no-attribution",
        action="store_true",
        help="don't look for the component that is responsible",
    )
    parser.add_argument(
        "--reports",
        type=output_folder,
        default=REPORTS,
        help=f"folder for runs (default: {REPORTS})",
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        default=OUT,
        help=f"folder for everything else (default: {OUT})",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    output = _Output(options, _allowed(options.allow) if options.allow else ())
    qualification, faults = _qualification(options)
    effort = Effort(
        reruns=options.reruns,
        representatives=options.representatives,
        attribution=not options.no_attribution,
        every_case=options.every_case,
    )
    arguments = with_paths(options.arguments)
    runner = Runner(Environments(), options.out, arguments, say, options.jobs, options.fresh)
    try:
        for comparison in comparisons(qualification, runner, effort):
            output.update(comparison)
    except KeyboardInterrupt:
        if not output.open:  # nothing is known yet, or all is
            raise
        say(f"interrupted: {output.summary} has what is known, still open: {output.open}")
        say("the same command continues")
        return INTERRUPTED
    left_out = told(faults)
    return output.exit_code or left_out


def _allowed(path: Path) -> tuple[AllowEntry, ...]:
    from harness.verdicts.allow_file import load

    return load(path, datetime.now(UTC).date())


class _Output:
    """The answer: the quick cases', the first of all cases and the last one go to the terminal.

    All of them go into the files.
    """

    def __init__(self, options: argparse.Namespace, entries: tuple[AllowEntry, ...]) -> None:
        self._options, self._entries = options, entries
        self.summary = Path()  # known once the two sides are
        self.open: Open | None = None  # of the answer that was given last
        self.exit_code = 0

    def update(self, comparison: Comparison) -> None:
        """Replace the answer."""
        final = not comparison.open
        shown = final or self.open is None or self.open.cases
        folder = self._options.out / folder_of(comparison)
        self.summary = self._options.markdown or folder / "summary.md"
        allowed = allow.apply(self._entries, comparison)
        data, file = as_data(comparison, allowed), self._options.json
        texts = {self.summary: comparison_github.summary(comparison, allowed)}
        if file and file != STDOUT:
            texts[file] = f"{as_json(data, indent=1)}\n"
        self.summary.parent.mkdir(parents=True, exist_ok=True)
        # What is no file, as /dev/stdout, can't be replaced later.
        write({p: text for p, text in texts.items() if final or p.is_file() or not p.exists()})
        if file == STDOUT:
            if final:
                show(as_json(data, indent=1))
        elif shown:
            show("\n".join(comparison_text.lines(comparison, allowed)))
        if shown:
            say(f"summary: {self.summary}")
        if final and self._options.annotations:
            annotate(comparison_github.annotation_lines(comparison, allowed))
        self.open = comparison.open
        self.exit_code = decide(comparison, allowed.entries.keys()).exit_code


def _reports(name: str) -> tuple[list[Report], list[str]]:
    """Return the reports of a file or folder and what can't be read; none for a stack's name."""
    path = Path(name)
    if path.suffix == ".xml":
        return read_all([path])
    return find_reports(path) if path.is_dir() else ([], [])


def _qualification(options: argparse.Namespace) -> tuple[Qualification, list[str]]:
    """Return what the command line names, and what of the given reports can't be read."""
    named = (options.base, options.candidate)
    read = [_reports(name) for name in named[bool(options.history) :]]
    given = [reports for reports, _ in read]
    if options.history:
        from harness.history.recorded import recorded
        from harness.history.store import History

        stack = next((report.stack for report in given[0] if report.stack), options.candidate)
        history = History(options.history)
        given.insert(0, [recorded(history, options.base, stack)])
        name_set_aside(history.set_aside)
    stacks = [
        None if reports else project.catalogue(options.folder).find(name)
        for reports, name in zip(given, named, strict=True)
    ]
    # A report or a recorded run has cases on more lanes than one, so the other side needs them too.
    both = not any(given)
    once = options.lanes is None and both
    options.lanes = options.lanes or (ONCE if once else LANES)
    ran = [stack for stack in stacks if stack]
    cells = cells_of(ran, options, options.reports, once=once)
    compiler = lane_named(COMPILED)
    has_it = all(has_needed(stack.packages, compiler) for stack in ran)
    if once and has_it and can_have(options.arguments, compiler):
        options.lanes = COMPILED
        cells += cells_of(ran, options, options.reports)
    if both and not options.arguments:
        cells = divided(cells, QUICK_LANE, project.quick_cases())
    base, candidate = stacks
    on_base = project.expected_on(base) if base and base != candidate else None
    qualification = Qualification(given, stacks, cells, project.upstream_rows(), on_base)
    return qualification, [fault for _, faults in read for fault in faults]
