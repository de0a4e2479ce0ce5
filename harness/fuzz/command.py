"""``xla-harness fuzz``."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.commands import project
from harness.commands.output import answer, say
from harness.commands.parsers import add_json, budget_seconds, names, output_folder, whole_number
from harness.errors import BadInputError, nearest
from harness.files import write
from harness.isolation import libc
from harness.lanes import Lane, lane_can, lane_named
from harness.model.topology import Topology

if TYPE_CHECKING:
    from harness.fuzz.reduced_causes import ReducedCause
    from harness.fuzz.searching import Drawn, RandomFailure
    from harness.fuzz.subjects import Subject

_OUT = Path("reports/fuzz")
_INSTALL = "pip install 'xla-harness[fuzz]'"
_LANE, _DEVICES = "cpu", "8"  # as many as the largest mesh has
_FRAMEWORKS = ("jax", "torch_xla", "torch_tpu", "torch")  # those with a writer and a runner
_REDUCING = "60s"  # for one failure
_WORD = re.compile(r"[^a-z]+")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--budget", default="5m", metavar="TIME", help="default: %(default)s")
    parser.add_argument(
        "--seed",
        type=whole_number(0, 1 << 30),
        default=0,
        metavar="N",
        help="decides which programs are drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--lane", default=_LANE, metavar="NAME", help="where they run (default: %(default)s)"
    )
    parser.add_argument(
        "--topology", metavar="SIZE", help="as 4 or 2x4 (default: 8, or the lane's)"
    )
    parser.add_argument(
        "--stacks",
        nargs="+",
        default=[],
        metavar="NAME",
        help="in these stacks' environments; the first is the base of the others",
    )
    parser.add_argument(
        "--framework",
        choices=_FRAMEWORKS,
        help="whose programs (default: the stacks'; without stacks, jax)",
    )
    parser.add_argument(
        "--without",
        type=names,
        default=(),
        metavar="NAMES",
        help="operators that no program has, such as pad,dynamic_slice",
    )
    parser.add_argument(
        "-n",
        type=whole_number(1, 256),
        dest="workers",
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="searches at once (default: one for each core)",
    )
    parser.add_argument(
        "--write",
        type=whole_number(1, 100_000),
        metavar="N",
        help="write so many programs as tests, and run none",
    )
    parser.add_argument(
        "--out",
        type=output_folder,
        default=_OUT,
        metavar="DIR",
        help="for what fails, a test each (default: %(default)s)",
    )
    add_json(parser)
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class _Report:
    """A failure with its cause, the issue that describes it, and the name of its files."""

    failure: RandomFailure
    cause: ReducedCause
    issue: str
    name: str

    @property
    def key(self) -> Hashable:
        """Return what is equal for failures with one cause."""
        if self.issue:
            return self.issue
        return self.cause.key if self.cause.kind else self.failure.signature


def _run(options: argparse.Namespace) -> int:
    if find_spec("hypothesis") is None:
        raise BadInputError(f"fuzz: expected Hypothesis, it is not installed: {_INSTALL}")
    budget = budget_seconds(options.budget)
    _check_operators(options.without)
    lane = lane_named(options.lane)
    if lane.compiles_only or lane.runs_cases_of:
        raise BadInputError(f"fuzz: lane {lane.name}: expected one that runs programs")
    options.framework = _framework(options)
    size = _size(options, lane)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.write:
        topology = Topology.parse(size) if size else lane.default_topology
        return _write_tests(options, topology.total)
    start = time.monotonic()
    stacks = ", ".join(options.stacks) or "this environment"
    say(f"drawing programs for {options.budget}: lane {lane.name}, {stacks}, seed {options.seed}")
    searched = _searched(options, size, start + budget)
    return _summary(options, searched, time.monotonic() - start)


def _size(options: argparse.Namespace, lane: Lane) -> str:
    """Return the topology, "" for the lane's own. Raises BadInputError for one that can't be."""
    from harness.fuzz.dtensor_text import RANKS
    from harness.fuzz.random_program import DTENSOR

    size: str = options.topology or (_DEVICES if lane.name == _LANE else "")
    if options.framework in DTENSOR:
        size = options.topology or str(RANKS)
        if (is_cpu := options.framework == "torch") != (lane.name == _LANE):
            able = f"lane {_LANE}" if is_cpu else "a lane of TPUs, as with --lane virtual-tpu"
            raise BadInputError(f"fuzz: programs of {options.framework}: expected {able}")
        if Topology.parse(size).total != RANKS:
            raise BadInputError(f"--topology {size}: expected {RANKS} devices, a rank for each")
    if size:
        lane_can(lane, Topology.parse(size))
    return size


def _framework(options: argparse.Namespace) -> str:
    """Return the framework that is named, or that of the stacks. Raises BadInputError."""
    if options.framework or not options.stacks:
        return options.framework or "jax"
    catalogue = project.catalogue(project.folder_of_stacks())
    frameworks = {catalogue.find(name).framework for name in options.stacks}
    if len(frameworks) > 1 or not frameworks <= {*_FRAMEWORKS}:
        raise BadInputError(
            f"--stacks {' '.join(options.stacks)}: expected those of one framework, "
            f"{' or '.join(_FRAMEWORKS)}"
        )
    return frameworks.pop()


def _check_operators(without: Sequence[str]) -> None:
    from harness.fuzz.random_operators import OPERATORS

    for name in without:
        if name not in OPERATORS:
            raise BadInputError(f"--without {name}: no operator, {nearest(name, OPERATORS)}")


def _searched(
    options: argparse.Namespace, size: str, until: float
) -> list[tuple[Drawn, Sequence[_Report]]]:
    """Search in several processes; Ctrl-C ends the search in each of them."""
    with ProcessPoolExecutor(
        options.workers,
        mp_context=multiprocessing.get_context("fork"),
        initializer=libc.die_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        searches = [
            pool.submit(_search, options, size, until, number) for number in range(options.workers)
        ]
        with contextlib.suppress(KeyboardInterrupt):
            return [each.result() for each in searches]
        return [each.result() for each in searches]


def _search(
    options: argparse.Namespace, size: str, until: float, worker: int
) -> tuple[Drawn, Sequence[_Report]]:
    from harness.fuzz.searching import RandomSearch
    from harness.fuzz.subjects import Subject

    stacks = options.stacks or [""]
    is_measured = len(stacks) > 1
    subjects = [
        Subject(name, options.lane, size, options.framework, is_measured=is_measured)
        for name in stacks
    ]
    reports: list[_Report] = []

    def tell(failure: RandomFailure) -> Hashable:
        taken = {each.name for each in reports}
        reports.append(each := _report(failure, subjects, options.out, taken, worker))
        return each.key

    search = RandomSearch(subjects, until, tell, options.without)
    try:
        for subject in subjects:
            subject.start()
        search.go_on(options.seed * options.workers + worker, options.out / f".examples-{worker}")
    except KeyboardInterrupt:
        pass  # what failed until then is reported
    finally:
        for subject in subjects:
            subject.end()
    return search.drawn, reports


def _report(
    failure: RandomFailure, subjects: Sequence[Subject], out: Path, taken: set[str], worker: int
) -> _Report:
    """Reduce a failure, write its test and say so."""
    from harness.fuzz.reduced_causes import known_issue, reduced

    cause = reduced(failure, subjects, _REDUCING)
    operations = {name.rpartition(".")[2] for name in cause.operations}
    words = [failure.ending.kind, cause.brought_by, *sorted(operations or failure.program.features)]
    name = "_".join(_WORD.sub("_", word) for word in words if word)[:50].rstrip("_")
    number = 1
    while (unused := f"{name}_{worker}{number}") in taken:
        number += 1
    report = _Report(failure, cause, known_issue(failure, cause), unused)
    files = {
        out / f"test_{unused}.py": f'"""{_title(report, subjects)}"""\n\n{failure.program.text}'
    }
    if cause.script:
        files |= {out / f"{unused}.py": cause.script, out / f"{unused}.mlir": cause.program}
    write(files)
    say(_title(report, subjects))
    return report


def _title(report: _Report, subjects: Sequence[Subject]) -> str:
    each = [
        f"{ending.kind} on {s}" for ending, s in zip(report.failure.endings, subjects, strict=True)
    ]
    return f"{', '.join(each)}: {report.failure.ending.detail}"


def _summary(
    options: argparse.Namespace, searched: Sequence[tuple[Drawn, Sequence[_Report]]], seconds: float
) -> int:
    by_cause: dict[Hashable, list[_Report]] = {}
    for each in (report for _, every in searched for report in every):
        by_cause.setdefault(each.key, []).append(each)
    groups = sorted(by_cause.values(), key=lambda group: bool(group[0].issue))
    smallest = [min(group, key=lambda each: each.cause.count or 1 << 30) for group in groups]
    programs = sum(drawn.programs for drawn, _ in searched)
    flaky = sum(drawn.flaky for drawn, _ in searched)
    lines = [line for each in smallest for line in _lines(each, options.out)]
    new = sum(not each.issue for each in smallest)
    rate = programs / max(seconds, 1e-9)
    lines.append(f"{programs:,} programs in {seconds:.0f} s, {rate:.0f} a second; {flaky} flaky")
    lines.append(f"{len(smallest)} causes of failures, {new} of them not known here")
    if new:
        lines.append(f"run them again with: pytest {options.out}")
    data = {
        "programs": programs,
        "seconds": round(seconds, 1),
        "flaky": flaky,
        "failures": [_data(each) for each in smallest],
    }
    answer(options, data, "\n".join(lines))
    return int(bool(new))


def _lines(report: _Report, out: Path) -> Sequence[str]:
    cause, ending = report.cause, report.failure.ending
    lines = [f"{report.issue or 'new'}: {ending.kind}: {ending.detail}"[:200]]
    if cause.kind:
        passes = f", wrong after pass {cause.brought_by}" if cause.brought_by else ""
        lines.append(f"  {cause.was} instructions -> {cause.count}{passes}")
        lines += [f"  not so with {flag}" for flag in cause.flags[:2]]
        lines.append(f"  script  {out / report.name}.py, for an upstream issue")
    elif cause.detail:
        lines.append(f"  {cause.detail}")
    return [*lines, f"  test    {out}/test_{report.name}.py"]


def _data(report: _Report) -> Mapping[str, Any]:
    endings = [{"kind": each.kind, "detail": each.detail} for each in report.failure.endings]
    return {
        "name": report.name,
        "issue": report.issue,
        "endings": endings,
        "features": sorted(report.failure.program.features),
        "cause": asdict(report.cause) | {"program": "", "script": ""},
    }


def _write_tests(options: argparse.Namespace, devices: int) -> int:
    """Write programs over so many devices as tests, for ``sensitivity`` or another runner."""
    from harness.fuzz.random_program import draw_programs, random_programs

    strategy = random_programs(
        devices,
        has_gspmd=False,
        framework=options.framework,
        without=options.without,
    )
    programs = draw_programs(strategy, options.seed, options.write * 8)
    # JAX may refuse what has explicit axes.
    chosen = [program.text for program in programs if not program.is_explicit][-options.write :]
    write({options.out / f"test_random_{n}.py": text for n, text in enumerate(chosen)})
    answer(options, {"programs": len(chosen)}, f"{len(chosen)} programs in {options.out}")
    return 0
