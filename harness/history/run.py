"""A run, read from its JUnit reports: its time, its stack, and each case's outcome."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from harness.errors import BadInputError
from harness.history import names as history_names
from harness.junit.properties import OUTCOMES, STACK_PROPERTY, VERSIONS
from harness.junit.reader import Reader
from harness.junit.result import Result, settled
from harness.junit.stream import Head, Reported

NO_STACK = "unknown"
_LONGEST = timedelta(days=7)  # that a run can take


@dataclass(frozen=True)
class RunMetadata:
    """Metadata that the caller gives for reports that don't contain it."""

    stack: str = ""
    commit: str = ""
    machine: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class Run:
    """Run of one stack. ``digest`` is a SHA-256 of the contents of its reports.

    ``faults`` name the parts of its reports that can't be read and are left out.
    """

    time: datetime  # start time, UTC
    stack: str
    commit: str
    machine: str
    versions: Mapping[str, str]  # component to version, "" when not said
    cases: tuple[Result, ...]  # by place
    digest: str
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Start, answers and content: the same run has the same name wherever it is recorded."""
        answers = sum(not case.lost for case in self.cases)
        return history_names.run_name(self.time, answers, self.digest)


def read_run(path: Path, metadata: RunMetadata = RunMetadata()) -> Run:
    """Read one report, ours or any pytest's, as a run.

    Raises BadInputError, naming the file, for what is no such report.
    """
    reader, digest = Reader(path), hashlib.sha256()
    attempts: defaultdict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for element in reader.elements():
        digest.update(_content(element.reported))
        if not element.second:
            attempts[element.result.place].append(element.result)
    head = reader.head
    stack, time = _stack(path, head, metadata), _time(path, head, metadata)
    digest.update("\0".join((stack, time.isoformat(), *_flat(head.properties))).encode())
    return Run(
        time=time,
        stack=stack,
        commit=metadata.commit or head.properties.get("commit", ""),
        machine=metadata.machine or head.hostname,
        versions={name: head.properties.get(name, "") for name in VERSIONS},
        cases=tuple(settled(attempts[key]) for key in sorted(attempts)),
        digest=digest.hexdigest(),
        faults=tuple(reader.faults),
    )


def joined(runs: Sequence[Run]) -> Run:
    """Lanes, shards and reruns of one stack as one run; the earliest comes first.

    Raises BadInputError when they are of several stacks or versions.
    """
    runs = sorted(runs, key=lambda run: (run.time, run.digest))
    first, cases = runs[0], dict[tuple[str, str, str], Result]()
    for run in runs:
        for name, was, is_ in (
            ("stack", first.stack, run.stack),
            *((name, first.versions[name], run.versions[name]) for name in VERSIONS),
        ):
            if was != is_:
                raise BadInputError(
                    f"{name}: expected reports of one run, found {was!r} and {is_!r}"
                )
        for case in run.cases:
            before = cases.get(case.place)
            cases[case.place] = _again(before, case) if before else case
    digest = hashlib.sha256("\0".join(run.digest for run in runs).encode())
    return replace(
        first,
        cases=tuple(cases[key] for key in sorted(cases)),
        digest=digest.hexdigest(),
        faults=tuple(fault for run in runs for fault in run.faults),
    )


def _again(before: Result, case: Result) -> Result:
    """Return the last attempt, which counts, with the earlier outcomes if they disagree."""
    earlier = before.properties.get(OUTCOMES, str(before.outcome))
    outcomes = f"{earlier}, {case.outcome}"
    differs = len(set(outcomes.split(", "))) > 1
    properties = {**case.properties, OUTCOMES: outcomes} if differs else case.properties
    return replace(case, properties=properties, rerun=before.rerun + case.rerun + 1)


def _stack(path: Path, head: Head, metadata: RunMetadata) -> str:
    stack = (metadata.stack or head.properties.get(STACK_PROPERTY, "")).strip() or NO_STACK
    try:
        history_names.check_stack(stack)
    except ValueError as error:
        raise BadInputError(f"{path}: property 'stack': {error}") from error
    return stack


def parse_time(text: str, where: str) -> datetime:
    """Parse an ISO 8601 time as UTC; a time without a zone is taken as UTC.

    Raises BadInputError, naming ``where`` it was written (an option, or a file and its attribute),
    also for a time at which nothing can have run.
    """
    try:
        return history_names.parse_time(text)
    except ValueError as error:
        raise BadInputError(f"{where}: {error}") from error


def _time(path: Path, head: Head, metadata: RunMetadata) -> datetime:
    """Return the earliest suite's; raises BadInputError for suites that can't be of one run."""
    if metadata.time is not None:
        return parse_time(metadata.time.isoformat(), "--time")
    where = f"{path}: attribute 'timestamp'"
    stamps = [parse_time(text, where) for text in head.timestamps]
    if not stamps:
        raise BadInputError(f"{where}: no suite says when it ran: give --time")
    first, last = min(stamps), max(stamps)
    if last - first > _LONGEST:
        raise BadInputError(
            f"{where}: expected suites of one run, found {first.isoformat()} and "
            f"{last.isoformat()}: give --time"
        )
    return first


def _content(written: Reported) -> bytes:
    """Return what a test case says, independent of its layout in the file. XML has no NUL."""
    parts = [*_flat(written.case._elem.attrib), *_flat(written.properties)]
    for entry in written.case._elem:
        parts += [entry.tag, *_flat(entry.attrib), entry.text or ""]
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def _flat(items: Mapping[str, str]) -> list[str]:
    return [text for name in sorted(items) for text in (name, items[name])]
