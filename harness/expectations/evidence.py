"""Evidence about each case in the reports of one or several stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import BadInputError
from harness.expectations.condition import Versions
from harness.expectations.entry import glob_pattern
from harness.expectations.failure_pattern import signature_of
from harness.expectations.ranges import framework_of, in_order
from harness.junit import report
from harness.junit.properties import EXPECTED_BY_PYTEST
from harness.junit.report import Report
from harness.junit.result import Result
from harness.model.outcome import Kind, Outcome


@dataclass
class StackEvidence:
    """Evidence about one case in the reports of one stack."""

    passes: int = 0  # reports in which it passes
    failures: list[Outcome] = field(default_factory=list)

    @property
    def is_flaky(self) -> bool:
        """Return whether the case passes in one of the stack's reports and fails in another."""
        return self.passes > 0 and bool(self.failures)

    @property
    def ways(self) -> set[tuple[Kind, str]]:
        """Distinct failures, each as a new entry would declare it."""
        return {(failure.kind, signature_of(failure.message)) for failure in self.failures}

    @property
    def runs(self) -> int:
        """Number of reports in which the case ran to an answer."""
        return self.passes + len(self.failures)


@dataclass(frozen=True)
class Evidence:
    """Evidence of all reports: stacks from old to new, and answers, None for a skipped case."""

    stacks: tuple[Versions, ...]
    answers: dict[str, dict[int, StackEvidence | None]]  # case id to index of the stack to answer
    areas: dict[str, str]  # case id to area

    def select(self, globs: Sequence[str]) -> Evidence:
        """Select the cases that match one of the globs, or all cases if there are no globs.

        Raises BadInputError for a glob that matches no case.
        """
        chosen = set[str]() if globs else set(self.answers)
        for glob in globs:
            matches = set(filter(glob_pattern(glob).fullmatch, self.answers))
            if not matches:
                raise BadInputError(f"--cases {glob!r}: matches no case of the reports")
            chosen |= matches
        return replace(self, answers={i: a for i, a in self.answers.items() if i in chosen})


def read(paths: Sequence[Path]) -> Evidence:
    """Read the reports; those of equal versions are runs of one stack.

    Raises BadInputError for one that can't be used, has no case, or is given twice.
    """
    reports = [_read(path) for path in paths]
    _refuse_copies(paths)
    stacks = in_order([dict(key) for key in {_stack_key(report_) for report_ in reports}])
    index = {tuple(sorted(stack.items())): number for number, stack in enumerate(stacks)}
    answers: dict[str, dict[int, StackEvidence | None]] = defaultdict(dict)
    areas: dict[str, str] = {}
    for each in reports:
        for result in each.results.values():
            areas[result.id] = result.area
            _add(answers[result.id], index[_stack_key(each)], result)
    return Evidence(tuple(stacks), dict(answers), areas)


def _read(path: Path) -> Report:
    read_report = report.read(path)
    if read_report.faults:  # what is missing in it would count as fixed, or as gone
        raise BadInputError(read_report.faults[0])
    if not read_report.results:
        raise BadInputError(f"{path}: no case in it: expected a report of a run of cases")
    try:
        framework_of(read_report.versions)
    except KeyError:
        raise BadInputError(
            f"{path}: expected the property torch_xla, or torch_tpu, to be a version"
        ) from None
    return read_report


def _refuse_copies(paths: Sequence[Path]) -> None:
    """Refuse a report that is given twice: one run would count as two."""
    seen: dict[bytes, Path] = {}
    for path in paths:
        first = seen.setdefault(path.read_bytes(), path)
        if first is not path:
            raise BadInputError(f"{path}: the same report as {first}: expected another run")


def _stack_key(report: Report) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(report.versions.items()))


def _add(answers: dict[int, StackEvidence | None], stack: int, result: Result) -> None:
    answer = answers.get(stack)
    # A marker of pytest's own says nothing of how the case fails.
    if not result.measured or result.expected_by == EXPECTED_BY_PYTEST:
        answers.setdefault(stack, None)
        return
    if answer is None:
        answer = answers[stack] = StackEvidence()
    if result.works or result.outcome == Kind.CONFLICT:  # which counts as both
        answer.passes += 1
    if not result.works:
        answer.failures.append(Outcome(result.actual, result.failure))
