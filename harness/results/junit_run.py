"""A run as its JUnit reports tell it: when, on which stack, and what became of each case."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from harness.errors import BadInputError
from harness.results.history_names import check_stack, checked_time, parse_time, run_name
from harness.results.junit_case import CaseRun, case_run, is_second_failure
from harness.results.junit_stream import Head, Reported, Stream
from harness.results.report import FORMAT, FORMAT_PROPERTY, STACK_PROPERTY
from harness.versions import COMPONENTS

NO_STACK = "unknown"
LOST = "lost"  # the property of a case that has no answer, since its cell left no report
VERSIONS = ("python", *COMPONENTS)


@dataclass(frozen=True)
class Said:
    """What the one who records says of the reports, where they don't say it themselves."""

    stack: str = ""
    commit: str = ""
    machine: str = ""
    time: datetime | None = None


@dataclass(frozen=True)
class Run:
    """One run of one stack. ``digest`` is a SHA-256 of all that its reports say."""

    time: datetime  # of its start, UTC
    stack: str
    commit: str
    machine: str
    versions: Mapping[str, str]  # component to version, "" when not said
    cases: tuple[CaseRun, ...]  # by key
    digest: str

    @property
    def name(self) -> str:
        """Start, answers and content: the same run has the same name wherever it is recorded."""
        answers = sum(LOST not in case.properties for case in self.cases)
        return run_name(self.time, answers, self.digest)


def read_run(path: Path, said: Said = Said()) -> Run:
    """Read one report, ours or any pytest's, as a run.

    Raises BadInputError, naming the file, for what is no such report.
    """
    stream, digest, cases = Stream(path), hashlib.sha256(), dict[tuple[str, str, str], CaseRun]()
    for reported in stream.cases():
        ours = _is_ours(path, stream.head)
        digest.update(_content(reported))
        case = case_run(path, reported, ours=ours)
        before = cases.get(case.key)
        if before is None:
            cases[case.key] = case
        elif not is_second_failure(reported, ours=ours):
            cases[case.key] = _again(before, case)
    head = stream.head
    stack, time = _stack(path, head, said), _time(path, head, said)
    digest.update("\0".join((stack, time.isoformat(), *_flat(head.properties))).encode())
    return Run(
        time=time,
        stack=stack,
        commit=said.commit or head.properties.get("commit", ""),
        machine=said.machine or head.hostname,
        versions={name: head.properties.get(name, "") for name in VERSIONS},
        cases=tuple(cases[key] for key in sorted(cases)),
        digest=digest.hexdigest(),
    )


def joined(runs: Sequence[Run]) -> Run:
    """Lanes, shards and reruns of one stack as one run; the earliest comes first.

    Raises BadInputError when they are of several stacks or versions.
    """
    runs = sorted(runs, key=lambda run: (run.time, run.digest))
    first, cases = runs[0], dict[tuple[str, str, str], CaseRun]()
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
            before = cases.get(case.key)
            cases[case.key] = _again(before, case) if before else case
    digest = hashlib.sha256("\0".join(run.digest for run in runs).encode())
    return replace(
        first, cases=tuple(cases[key] for key in sorted(cases)), digest=digest.hexdigest()
    )


def _again(before: CaseRun, case: CaseRun) -> CaseRun:
    """The last attempt, which counts, with what the earlier ones said where they disagree."""
    said = before.properties.get("outcomes", str(before.outcome))
    outcomes = f"{said}, {case.outcome}"
    differs = len(set(outcomes.split(", "))) > 1
    properties = {**case.properties, "outcomes": outcomes} if differs else case.properties
    return replace(case, properties=properties, rerun=before.rerun + case.rerun + 1)


def _is_ours(path: Path, head: Head) -> bool:
    found = head.properties.get(FORMAT_PROPERTY)
    if found not in (None, FORMAT):
        raise BadInputError(
            f"{path}: expected the property {FORMAT_PROPERTY} to be {FORMAT}, the report says "
            f"{found[:50]!r}: another version of xla-harness wrote it; run the cases again"
        )
    return found is not None


def _stack(path: Path, head: Head, said: Said) -> str:
    stack = (said.stack or head.properties.get(STACK_PROPERTY, "")).strip() or NO_STACK
    try:
        check_stack(stack)
    except ValueError as error:
        raise BadInputError(f"{path}: property 'stack': {error}") from error
    return stack


def _time(path: Path, head: Head, said: Said) -> datetime:
    """The earliest suite's; one without a time zone is taken as UTC."""
    try:
        if said.time is not None:
            return checked_time(said.time)
        stamps = [parse_time(text) for text in head.timestamps]
    except ValueError as error:
        where = "attribute 'timestamp'" if said.time is None else "--time"
        raise BadInputError(f"{path}: {where}: {error}") from error
    if not stamps:
        raise BadInputError(
            f"{path}: attribute 'timestamp': no suite says when it ran: give --time"
        )
    return min(stamps)


def _content(reported: Reported) -> bytes:
    """All that counts of a test case, whatever its layout in the file. XML has no NUL."""
    parts = [*_flat(reported.case._elem.attrib), *_flat(reported.properties)]
    for entry in reported.case._elem:
        parts += [entry.tag, *_flat(entry.attrib), entry.text or ""]
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def _flat(items: Mapping[str, str]) -> list[str]:
    return [text for name in sorted(items) for text in (name, items[name])]
