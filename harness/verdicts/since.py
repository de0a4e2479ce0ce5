"""An upstream issue over stacks: which get it wrong, since when and until when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from packaging.version import Version

from harness.errors import BadInputError
from harness.expectations import Expectation
from harness.expectations.condition import Versions
from harness.junit.properties import FORMAT_PROPERTY
from harness.junit.report import Report, read_all
from harness.junit.result import Result
from harness.model.issues import resolve
from harness.model.versions import LEADING, leading, named_by
from harness.verdicts.comparison import Side, side
from harness.verdicts.upstream import Row, RowAnswer

_MOST_OF_A_HEAD = 1 << 16  # bytes: pytest writes a suite's properties before its cases


@dataclass(frozen=True)
class StackAnswer:
    """Answer of one stack about one issue."""

    name: str
    answer: RowAnswer


@dataclass(frozen=True)
class Timeline:
    """A row, or the cases of an issue without one, over stacks in the order of their versions."""

    title: str
    stacks: tuple[StackAnswer, ...]
    declared: bool = False  # by expectations, which were measured elsewhere

    def names(self, verdict: str) -> list[str]:
        """Return the stacks with this verdict: ``ok``, ``wrong`` or ``unmeasured``."""
        return [stack.name for stack in self.stacks if stack.answer.verdict == verdict]

    @property
    def known(self) -> list[StackAnswer]:
        """Stacks that measured the row."""
        return [stack for stack in self.stacks if stack.answer.verdict != "unmeasured"]

    @property
    def changes(self) -> int:
        """Number of times the verdict changes from one stack that measured it to the next."""
        return len(list(groupby(stack.answer.verdict for stack in self.known))) - 1

    @property
    def first_good_after(self) -> str:
        """The first stack after the last bad one that is right, or ""."""
        last = max((i for i, s in enumerate(self.known) if s.answer.wrong), default=-1)
        return self.known[last + 1].name if 0 <= last < len(self.known) - 1 else ""


def find_reports(folder: Path) -> tuple[list[Report], list[str]]:
    """Return the harness's reports below ``folder``, and what is wrong with unreadable ones.

    Raises BadInputError when there is none.
    """
    paths = sorted(path for path in folder.rglob("*.xml") if _is_ours(path))
    if not paths:
        raise BadInputError(
            f"{folder}: expected reports of xla-harness (*.xml with the property "
            f"{FORMAT_PROPERTY}) in it, found none: run xla-harness matrix, or name another "
            "folder with --reports"
        )
    return read_all(paths)


@dataclass(frozen=True)
class Declarations:
    """Declarations of expectations about stacks that may not have been run here."""

    entries: Sequence[Expectation] = ()
    stacks: Mapping[str, Versions] = field(default_factory=dict)  # in order

    def timeline(self, issue: str, measured: Collection[str]) -> Timeline | None:
        """Return what is declared for the issue on the stacks that were not measured.

        None if nothing is. Stacks of a framework on which no entry ever holds are left out: there
        the cases may never have been asked.
        """
        about = [entry for entry in self.entries if entry.cause == issue]
        globs = {glob for entry in about for glob in entry.cases}
        wrong = {
            name: {glob for e in about if e.condition.holds(versions) for glob in e.cases}
            for name, versions in self.stacks.items()
        }
        frameworks = {leading(self.stacks[name]) for name, failing in wrong.items() if failing}
        answers = tuple(
            StackAnswer(name, RowAnswer(len(globs - failing), len(failing), 0))
            for name, failing in wrong.items()
            if name not in measured and leading(self.stacks[name]) in frameworks
        )
        title = f"declared for {issue}, not measured here"
        return Timeline(title, answers, declared=True) if answers else None


def timelines(
    text: str,
    reports: Sequence[Report],
    rows: Sequence[Row],
    declared: Declarations = Declarations(),
) -> list[Timeline]:
    """Return the rows that name the issue, or, if none does, one of the cases about it.

    Those are the cases that watch the issue and that some run expects to fail for it; if no run
    expects any to, all that watch it. Then, of stacks without an answer, what is declared. Raises
    BadInputError for an issue that nothing names, or of which nothing is known.
    """
    causes = (entry.cause for entry in declared.entries if "#" in entry.cause)
    issue = resolve(text, [*_known(reports, rows), *causes])
    answered = _measured(issue, reports, rows) if reports else []
    names = {stack.name for timeline in answered for stack in timeline.known}
    if (known := declared.timeline(issue, names)) is not None:
        answered.append(known)
    if not answered:
        raise BadInputError(
            f"{issue}: there are no reports, and no expectation declares it: run xla-harness "
            "matrix, or name a folder of reports with --reports"
        )
    return answered


def _measured(issue: str, reports: Sequence[Report], rows: Sequence[Row]) -> list[Timeline]:
    sides = _sides(reports)
    named = [row for row in rows if issue in row.issues]
    if named:
        return [_timeline(row.title, sides, row.select, row.answer) for row in named]
    return [_watched(issue, reports, sides)]


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return FORMAT_PROPERTY.encode() in file.read(_MOST_OF_A_HEAD)


def _known(reports: Sequence[Report], rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield from row.issues
    for report in reports:
        for result in report.results.values():
            yield from result.upstream
            if "#" in result.expectation:
                yield result.expectation


def _sides(reports: Sequence[Report]) -> list[Side]:
    """Join each stack's reports, in PEP 440 order of torch_xla, then of torch_tpu, then of jax."""
    by_stack: dict[str, list[Report]] = {}
    for report in reports:
        name = report.stack or named_by(report.versions) or "unknown"
        by_stack.setdefault(name, []).append(report)
    return sorted((side(members) for members in by_stack.values()), key=_order)


def _order(each: Side) -> tuple[int, Version, str]:
    name = leading(each.versions)
    try:
        return LEADING.index(name), Version(each.versions[name]), each.name
    except (ValueError, KeyError):  # InvalidVersion is a ValueError
        return -1, Version("0"), each.name


def _timeline(
    name: str,
    sides: Sequence[Side],
    select: Callable[[Sequence[Result]], Sequence[Result]],
    answer: Callable[[Sequence[Result]], RowAnswer],
) -> Timeline:
    firsts = [(each.name, [runs[0] for runs in each.runs.values()]) for each in sides]
    return Timeline(
        name, tuple(StackAnswer(name, answer(select(results))) for name, results in firsts)
    )


def _watched(issue: str, reports: Sequence[Report], sides: Sequence[Side]) -> Timeline:
    results = [result for report in reports for result in report.results.values()]
    about = {result.key for result in results if result.expectation == issue}
    about = about or {result.key for result in results if issue in result.upstream}
    any_case = Row(title=f"cases about {issue}", issues=(issue,), cases=("*",))
    return _timeline(
        any_case.title,
        sides,
        lambda results: [result for result in results if result.key in about],
        any_case.answer,
    )
