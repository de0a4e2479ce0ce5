"""``xla-harness bisect``: the stack that broke a case."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.commands import project
from harness.commands.output import answer, say
from harness.commands.parsers import add_folder, add_json, names, output_folder
from harness.diagnosis.signature import headline
from harness.errors import BadInputError
from harness.junit.result import Result
from harness.lanes import DEFAULT_LANE, LANES
from harness.matrix import pool
from harness.matrix.attribution import differing
from harness.matrix.bisect import StackState, TurningPoint, bisect
from harness.matrix.cell import Cell, collected
from harness.model.case_id import file_of
from harness.stacks import wheels
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack

REPORTS = Path("reports/bisect")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("case", metavar="CASE", help="its id, as pytest prints it")
    parser.add_argument("--good", required=True, metavar="STACK", help="where it works")
    parser.add_argument("--bad", required=True, metavar="STACK", help="where it does not")
    parser.add_argument("--stacks", metavar="NAMES", help="search these, in this order")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="nightly wheels as stacks")
    parser.add_argument("--base", metavar="STACK", help="stack of everything else")
    parser.add_argument(
        "--component", default="torch_xla", help="what the wheels are of; default: torch_xla"
    )
    parser.add_argument("--every", action="store_true", help="run it on all: is there one change?")
    parser.add_argument("--lane", help="for a case whose id names none")
    add_folder(parser)
    parser.add_argument(
        "--out",
        type=output_folder,
        default=REPORTS,
        help=f"folder for reports (default: {REPORTS})",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    stacks, broke = _stacks(options)
    by_name = {stack.name: stack for stack in stacks}
    environments = Environments()
    lane = _lane(options, stacks[0], environments)
    digest = hashlib.sha256(options.case.encode()).hexdigest()[:8]
    asker = _Asker(options.case, lane, options.out / digest, environments)
    point = bisect(
        [stack.name for stack in stacks],
        lambda name: asker.ask(by_name[name]),
        every=options.every,
    )
    parts = [part.name for part in differing(by_name[point.bad], by_name[point.good])]
    text_lines = _told(options.case, point, asker, list(by_name), broke=broke)
    text_lines = [*text_lines, f"the two differ in {', '.join(parts)}"]
    data = _data(options.case, point, asker, broke=broke) | {"components": parts}
    answer(options, data, "\n".join(text_lines))
    return 0


class _Asker:
    """Runs the case on one stack at a time and remembers the results."""

    def __init__(self, case: str, lane: str, folder: Path, environments: Environments) -> None:
        self._case, self._lane, self._folder = case, lane, folder
        self._environments = environments
        self.results: dict[str, Result] = {}

    def ask(self, stack: Stack) -> StackState:
        file = file_of(self._case)
        cell = Cell(stack, self._lane, self._folder / stack.slug, (file,), (self._case,))
        try:
            done = pool.run([cell], self._environments, jobs=1, say=say)
        except BadInputError as error:  # no environment of this stack
            done = pool.Done([cell], {str(cell): str(error)})
        if done.died:
            say("\n".join(done.died.values()))
            return StackState.UNKNOWN
        for result in cell.read().results.values():
            self.results[stack.name] = result
            if result.measured:
                return StackState.GOOD if result.works else StackState.BAD
        return StackState.UNKNOWN


def _stacks(options: argparse.Namespace) -> tuple[list[Stack], bool]:
    """Return the stacks from the good to the bad one, and whether the bad one is the later."""
    catalogue = project.catalogue(options.folder)
    if options.wheels is not None:
        newest = catalogue.newest_for(options.component)
        base = catalogue.find(options.base) if options.base else newest
        every = wheels.stacks_of(options.wheels, base, options.component)
        good, bad = wheels.named(every, options.good), wheels.named(every, options.bad)
    elif options.stacks:
        every = catalogue.chosen(names(options.stacks))
        ends = [catalogue.find(name) for name in (options.good, options.bad)]
        if any(end not in every for end in ends):
            raise BadInputError("--stacks: expected --good and --bad among them")
        good, bad = map(every.index, ends)
    else:
        every = catalogue.between(options.good, options.bad)
        good = 0 if every[0] == catalogue.find(options.good) else len(every) - 1
        bad = len(every) - 1 - good
    return (every[good : bad + 1], True) if good <= bad else (every[bad : good + 1][::-1], False)


def _lane(options: argparse.Namespace, good: Stack, environments: Environments) -> str:
    """Return the case's lane.

    Raises BadInputError for one that the good stack does not collect.
    """
    file = file_of(options.case)
    if not Path(file).is_file():
        raise BadInputError(f"case {options.case!r}: {file} is missing")
    ids = collected(environments.create(good, say), environments.cache, file, options.lane)
    if options.case not in ids:
        close = difflib.get_close_matches(options.case, ids, n=3)
        near = "".join(f"\n  {case}" for case in close) or f" one of {len(ids)}, which `list` shows"
        raise BadInputError(
            f"case {options.case!r}: not among those of {file} on {good.name}; did you mean{near}"
        )
    named = re.search(r"\[([a-z-]+?)-(?:v\d\w*:)?\d", options.case)
    return str(options.lane or (named[1] if named and named[1] in LANES else DEFAULT_LANE))


def _data(case: str, point: TurningPoint, asker: _Asker, *, broke: bool) -> dict[str, Any]:
    """Return the turning point as plain values."""
    failures = {name: result.failure for name, result in asker.results.items()}
    return {
        "case": case,
        "change": "broke" if broke else "fixed",
        "good": point.good,
        "bad": point.bad,
        "between": list(point.between),
        "changes": point.changes,
        "stacks": [
            {"name": name, "answer": str(state), "failure": failures.get(name, "")}
            for name, state in point.answers.items()
        ],
    }


def _told(
    case: str, point: TurningPoint, asker: _Asker, names: Sequence[str], *, broke: bool
) -> Sequence[str]:
    lines, width = [case], max(16, *(len(name) + 1 for name in names))
    for name in names:
        result = asker.results.get(name)
        answer = point.answers.get(name)
        first = headline(result.failure) if result else ""
        lines.append(f"  {name:<{width}}{answer or 'not run':<13}{first}"[:80].rstrip())
    if broke:
        lines.append(f"broke in {point.bad}: {point.good} is the last good one")
    else:
        lines.append(f"fixed in {point.good}: {point.bad} is the last bad one")
    if point.between:
        lines.append(f"could not be measured in between: {', '.join(point.between)}")
    if point.changes > 1:
        lines.append(
            f"not monotonic: the answer changes {point.changes} times; this is one of them"
        )
    elif len(point.answers) < len(names):
        lines.append(f"{len(point.answers)} of {len(names)} stacks asked; --every asks them all")
    return lines
