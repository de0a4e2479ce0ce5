"""Several workers' reports of one job as one: a case is as bad as on its worst worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from junitparser.junitparser import Error
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from harness import files
from harness.errors import BadInputError
from harness.outcome import Kind
from harness.results.junit_case import case_run
from harness.results.junit_stream import Reported, Stream
from harness.results.report import FORMAT_PROPERTY
from harness.versions import COMPONENTS

_WORST_FIRST = (
    Kind.CRASHED,
    Kind.HUNG,
    Kind.FAILED,
    Kind.UNEXPECTED_PASS,
    Kind.EXPECTED_FAILURE,
    Kind.PASSED,
    Kind.SKIPPED,  # where others ran it, what they found counts
)
_VERSIONS = ("python", *COMPONENTS)


@dataclass(frozen=True)
class _Answer:
    """What one worker says of one case: its outcome, and its elements of the report."""

    worker: str
    kind: Kind
    message: str
    cases: tuple[TestCase, ...]  # a second one for a second failure


@dataclass
class _Worker:
    """One worker's report."""

    suite: Any
    answers: dict[tuple[str, ...], _Answer] = field(default_factory=dict)


@dataclass(frozen=True)
class Merged:
    """What was found, in lines, and whether a case is bad or a report missing."""

    lines: tuple[str, ...]
    bad: bool


def write(reports: Mapping[str, Path], out: Path, told: Mapping[str, str]) -> Merged:
    """Merge the workers' ``reports``, those that exist, to ``out``.

    ``told`` says by worker why it may have none. A case that a worker has no answer for, because it
    has no report or died before it, counts as crashed there.

    Raises BadInputError when no worker has a report, or one can't be read.
    """
    workers = {name: _read(name, path) for name, path in reports.items() if path.exists()}
    missing = {name: told.get(name, "no report") for name in reports if name not in workers}
    if not workers:
        why = "; ".join(f"{name}: {text}" for name, text in missing.items())
        raise BadInputError(f"no worker left a report: {why}")
    first = next(iter(workers.values()))
    suite: Any = TestSuite(first.suite.name)  # type: ignore[no-untyped-call]
    for attribute in ("timestamp", "hostname"):
        if value := first.suite._elem.get(attribute):
            suite._elem.set(attribute, value)
    for key, value in _properties(first.suite).items():
        suite.add_property(key, value)
    suite.add_property("workers", ", ".join(reports))
    for name, why in missing.items():
        suite.add_property(f"worker {name}", why)
    keys = dict.fromkeys(key for worker in workers.values() for key in worker.answers)
    counts: Counter[Kind] = Counter()
    for case_key in keys:
        answers = [
            worker.answers[case_key] for worker in workers.values() if case_key in worker.answers
        ]
        absent = {name: missing.get(name, "no answer") for name in reports}
        for answer in answers:
            absent.pop(answer.worker)
        merged, kind = _merged(answers, absent)
        counts[kind] += 1
        suite._elem.extend(case._elem for case in merged)
    suite.update_statistics()
    suite.time = max(float(worker.suite.time or 0) for worker in workers.values())
    whole: Any = JUnitXml("pytest tests")
    whole.add_testsuite(suite)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write({out: whole.tostring().decode()})
    lines = [f"worker {name} has no report: {why}" for name, why in missing.items()]
    lines += _skew(workers)
    outcomes = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    lines.append(f"{len(keys)} cases of {len(reports)} workers: {outcomes or 'none'}")
    return Merged(tuple(lines), bool(missing) or any(kind.is_bad for kind in counts))


def _read(name: str, path: Path) -> _Worker:
    for _ in Stream(path).cases():  # hostile or broken: said here, before all of it is read
        pass
    suites = list(JUnitXml.fromfile(str(path)))
    worker = _Worker(suites[0])
    for suite in suites:
        ours = FORMAT_PROPERTY in _properties(suite)
        for element in suite:
            case = cast("TestCase", element)
            properties = _properties(case)
            found = case_run(path, Reported(case, properties), ours=ours)
            key = (*found.key, str(case.name))
            before = worker.answers.get(key)
            cases = (*before.cases, case) if before else (case,)
            message = properties.get("outcome_detail", "") or found.message
            worker.answers[key] = (
                _Answer(name, before.kind, before.message, cases)
                if before
                else _Answer(name, found.outcome, message, cases)
            )
    return worker


def _merged(answers: Sequence[_Answer], absent: Mapping[str, str]) -> tuple[list[TestCase], Kind]:
    """The elements of the worst worker, with what all others said."""
    worst = min(answers, key=lambda answer: _WORST_FIRST.index(answer.kind))
    cases = [deepcopy(case) for case in worst.cases]
    kind = Kind.CRASHED if absent else worst.kind
    said = {answer.worker: str(answer.kind) for answer in answers} | dict(absent)
    for case in cases:
        case.add_property("workers", ", ".join(f"{w} {said[w]}" for w in sorted(said)))
        skipped = {a.worker: a.message for a in answers if a.kind == Kind.SKIPPED}
        if skipped and len({*skipped.values()}) + (len(skipped) < len(said)) > 1:
            case.add_property("skipped_on", "; ".join(f"{w}: {r}" for w, r in skipped.items()))
    _add_output(cases[-1], answers)
    if absent:
        _miss(cases[0], absent)
    elif len(said) > 1 and cases[0].result:
        result = cases[0].result[0]
        others = [
            a for a in answers if a is not worst and a.kind not in (Kind.PASSED, Kind.SKIPPED)
        ]
        texts = [f"worker {a.worker}: {_text(a)}" for a in (worst, *others)]
        result.text = "\n\n".join(texts)
    return cases, kind


def _miss(case: Any, absent: Mapping[str, str]) -> None:
    """Nobody can say that the case works: a worker died before it said so."""
    message = "; ".join(f"worker {name} has no result: {why}" for name, why in absent.items())
    for entry in case.properties():
        if entry.name in ("outcome", "outcome_detail", "failure", "layer"):
            case.remove_property(entry)
    for name, value in (
        ("outcome", Kind.CRASHED),
        ("outcome_detail", message),
        ("failure", message),
    ):
        case.add_property(name, str(value))
    error = Error(message)
    error.text = "\n".join([message, *(str(entry.text or "") for entry in case.result)])
    case.result = error


def _add_output(case: TestCase, answers: Sequence[_Answer]) -> None:
    """What each worker printed, under its name."""
    for stream in ("system_out", "system_err"):
        texts = {
            answer.worker: text
            for answer in answers
            for text in [str(getattr(answer.cases[-1], stream) or "").strip()]
            if text
        }
        if texts:
            parts = [f"--- worker {name} ---\n{text}" for name, text in texts.items()]
            setattr(case, stream, "\n".join(parts) + "\n")


def _text(answer: _Answer) -> str:
    texts = [
        str(entry.text or entry.message or "") for case in answer.cases for entry in case.result
    ]
    return "\n".join(texts) or answer.message


def _skew(workers: Mapping[str, _Worker]) -> list[str]:
    """Workers that ran other versions than the first one."""
    said = {
        name: {k: v for k, v in _properties(worker.suite).items() if k in _VERSIONS}
        for name, worker in workers.items()
    }
    first = next(iter(said.values()))
    return [
        f"worker {name} ran {key} {value}, worker {next(iter(said))} {first.get(key)}"
        for name, versions in said.items()
        for key, value in versions.items()
        if value != first.get(key)
    ]


def _properties(element: Any) -> dict[str, str]:
    return {entry.name: entry.value for entry in element.properties()}
