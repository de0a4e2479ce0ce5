"""Several workers' reports of one job as one: a case is as bad as on its worst worker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element as XmlElement

from junitparser.junitparser import Error
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from harness import files
from harness.errors import BadInputError
from harness.junit.case import seconds
from harness.junit.properties import VERSIONS
from harness.junit.reader import Element, Reader
from harness.junit.result import Result, settled
from harness.junit.seal import sealed
from harness.junit.stream import Head
from harness.model.outcome import Kind

_WORST_FIRST = (
    Kind.CRASHED,
    Kind.HUNG,
    Kind.FAILED,
    Kind.CONFLICT,
    Kind.UNEXPECTED_PASS,
    Kind.EXPECTED_FAILURE,
    Kind.PASSED,
    Kind.SKIPPED,  # where others ran it, what they found counts
)


@dataclass(frozen=True)
class _CaseOnWorkers:
    """Outcome of a case on one worker, with its elements of that worker's report."""

    worker: str
    case: Result
    kind: Kind
    message: str
    cases: tuple[TestCase, ...]  # a second one for a second failure, one each in a conflict


@dataclass(frozen=True)
class _WorkerReport:
    """Report of one worker. ``faults`` name the parts of it that can't be read."""

    head: Head
    answers: Mapping[tuple[str, str, str], _CaseOnWorkers]
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Merged:
    """Result of merging the workers' reports."""

    workers: int
    missing: Mapping[str, str]  # worker to why it has no report
    faults: tuple[str, ...]  # parts of the reports that can't be read and are left out
    skew: tuple[str, ...]  # components whose version differs between workers
    counts: Mapping[Kind, int]  # of cases

    @property
    def bad(self) -> bool:
        """Return whether a case is bad or a report is missing."""
        return bool(self.missing) or any(kind.is_bad for kind in self.counts)

    @property
    def lines(self) -> list[str]:
        """The same for a terminal."""
        outcomes = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        return [
            *(f"worker {name} has no report: {why}" for name, why in self.missing.items()),
            *self.faults,
            *self.skew,
            f"{sum(self.counts.values())} cases of {self.workers} workers: {outcomes or 'none'}",
        ]


def write(reports: Mapping[str, Path], out: Path, notes: Mapping[str, str]) -> Merged:
    """Merge the workers' ``reports``, those that exist and are whole, to ``out``.

    ``notes`` say by worker why it may have none. A case that a worker has no answer for, because it
    has no report or died before it, or its answer can't be read, counts as crashed there.

    Raises BadInputError when no worker has a report that can be read.
    """
    workers, missing = _workers(reports, notes)
    if not workers:
        why = "; ".join(f"{name}: {text}" for name, text in missing.items())
        raise BadInputError(f"no worker left a report: {why}")
    suite = _suite(workers, missing, list(reports))
    keys = dict.fromkeys(key for worker in workers.values() for key in worker.answers)
    counts: Counter[Kind] = Counter()
    for key in keys:
        answers = [worker.answers[key] for worker in workers.values() if key in worker.answers]
        absent = {name: missing.get(name, "no answer") for name in reports}
        for answer in answers:
            absent.pop(answer.worker)
        merged, kind = _merged(answers, absent)
        counts[kind] += 1
        suite._elem.extend(case._elem for case in merged)
    suite.update_statistics()
    suite.time = max(_time(worker.head) for worker in workers.values())
    whole: Any = JUnitXml("pytest tests")
    whole.add_testsuite(suite)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write({out: sealed(whole.tostring().decode())})
    faults = tuple(f"worker {name}: {text}" for name in workers for text in workers[name].faults)
    return Merged(len(reports), missing, faults, tuple(_skew(workers)), counts)


def _workers(
    reports: Mapping[str, Path], notes: Mapping[str, str]
) -> tuple[dict[str, _WorkerReport], dict[str, str]]:
    """Return the workers that have a whole report, and why the others have none."""
    workers, missing = dict[str, _WorkerReport](), dict[str, str]()
    for name, path in reports.items():
        if not path.exists():
            missing[name] = notes.get(name, "no report")
            continue
        try:
            workers[name] = _read(name, path)
        except BadInputError as error:
            missing[name] = str(error)
    return workers, missing


def _suite(
    workers: Mapping[str, _WorkerReport], missing: Mapping[str, str], names: list[str]
) -> Any:
    """Return the suite without cases, as the first worker describes it."""
    head = next(iter(workers.values())).head
    suite: Any = TestSuite(head.attributes.get("name", "pytest"))  # type: ignore[no-untyped-call]
    for attribute in ("timestamp", "hostname"):
        if value := head.attributes.get(attribute):
            suite._elem.set(attribute, value)
    properties = {"workers": ", ".join(names)}
    properties |= {f"worker {name}": why for name, why in missing.items()}
    for name, value in (head.properties | properties).items():
        suite.add_property(name, value)
    return suite


def _time(head: Head) -> float:
    try:
        return seconds(head.attributes.get("time", ""))
    except ValueError:
        return 0.0


def _read(name: str, path: Path) -> _WorkerReport:
    """Read a worker's report. Raises BadInputError for one that is no such report, or cut off."""
    reader = Reader(path, output=True)
    by_place: defaultdict[tuple[str, str, str], list[Element]] = defaultdict(list)
    for element in reader.elements():
        by_place[element.result.place].append(element)
    if reader.head.cut:
        raise BadInputError(reader.faults[-1])
    answers = {key: _answer(name, elements) for key, elements in by_place.items()}
    return _WorkerReport(reader.head, answers, tuple(reader.faults))


def _answer(worker: str, elements: Sequence[Element]) -> _CaseOnWorkers:
    case = settled([element.result for element in elements if not element.second])
    if case.lost:
        return _CaseOnWorkers(worker, case, Kind.CRASHED, case.message, (_unread(elements[0]),))
    message = case.message
    if case.outcome != Kind.CONFLICT:
        message = elements[0].reported.properties.get("outcome_detail", "") or message
    return _CaseOnWorkers(
        worker, case, case.outcome, message, tuple(each.xml() for each in elements)
    )


def _unread(element: Element) -> TestCase:
    """Return an element that replaces an unreadable one."""
    old = element.reported.case._elem.attrib
    new = XmlElement("testcase", {k: old[k] for k in ("classname", "name") if k in old})
    case: TestCase = TestCase.fromelem(new)  # type: ignore[no-untyped-call]
    _crash(case, element.result, element.result.message)
    return case


def _merged(
    answers: Sequence[_CaseOnWorkers], absent: Mapping[str, str]
) -> tuple[list[TestCase], Kind]:
    """Return the elements of the worst worker, with those of all others attached."""
    worst = min(answers, key=lambda answer: _WORST_FIRST.index(answer.kind))
    cases = list(worst.cases[:1] if absent else worst.cases)
    kind = Kind.CRASHED if absent else worst.kind
    outcomes = {answer.worker: str(answer.kind) for answer in answers} | dict(absent)
    skipped = {a.worker: a.message for a in answers if a.kind == Kind.SKIPPED}
    for case in cases:
        _set(case, {"workers": ", ".join(f"{w} {outcomes[w]}" for w in sorted(outcomes))})
        if skipped and len({*skipped.values()}) + (len(skipped) < len(outcomes)) > 1:
            _set(case, {"skipped_on": "; ".join(f"{w}: {r}" for w, r in skipped.items())})
    _add_output(cases[-1], answers)
    if absent:
        _crash(
            cases[0],
            worst.case,
            "; ".join(f"worker {name} has no result: {why}" for name, why in absent.items()),
        )
    elif len(outcomes) > 1 and cases[0].result:
        result = cases[0].result[0]
        others = [
            a for a in answers if a is not worst and a.kind not in (Kind.PASSED, Kind.SKIPPED)
        ]
        texts = [f"worker {a.worker}: {_text(a)}" for a in (worst, *others)]
        result.text = "\n\n".join(texts)
    return cases, kind


def _crash(case: Any, place: Result, message: str) -> None:
    """Nobody can say that the case works: a worker died before it said so."""
    properties = {
        "id": place.id,
        "area": place.area,
        "lane": place.lane,
        "topology": place.topology,
    }
    properties |= dict.fromkeys(("layer", "signature"), "")
    properties |= dict.fromkeys(("actual", "outcome"), str(Kind.CRASHED))
    _set(case, properties | {"outcome_detail": message, "failure": message})
    error = Error(message)
    error.text = "\n".join([message, *(str(entry.text or "") for entry in case.result)])
    case.result = error


def _set(case: Any, values: Mapping[str, str]) -> None:
    """Give properties a value, whatever they had."""
    for entry in list(case.properties()):
        if entry.name in values:
            case.remove_property(entry)
    for name, value in values.items():
        case.add_property(name, value)


def _add_output(case: TestCase, answers: Sequence[_CaseOnWorkers]) -> None:
    """Add what each worker printed, under its name."""
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


def _text(answer: _CaseOnWorkers) -> str:
    texts = [
        str(entry.text or entry.message or "") for case in answer.cases for entry in case.result
    ]
    return "\n".join(texts) or answer.message


def _skew(workers: Mapping[str, _WorkerReport]) -> list[str]:
    """Workers that ran other versions than the first one."""
    ran = {
        name: {k: v for k, v in worker.head.properties.items() if k in VERSIONS}
        for name, worker in workers.items()
    }
    first = next(iter(ran.values()))
    return [
        f"worker {name} ran {key} {value}, worker {next(iter(ran))} {first.get(key)}"
        for name, versions in ran.items()
        for key, value in versions.items()
        if value != first.get(key)
    ]
