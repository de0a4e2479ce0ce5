"""What one test case of a JUnit report says: of ours by its properties, of any pytest's by rule."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from junitparser.junitparser import Error, Failure, FinalResult, Skipped
from junitparser.xunit2 import FlakyError, FlakyFailure, InterimResult

from harness.errors import BadInputError
from harness.outcome import Kind
from harness.results.groups import first_line, generalised
from harness.results.junit_stream import Reported
from harness.versions import COMPONENTS

MOST_MESSAGE = 2000  # characters
_MOST_ID = 4000  # characters
_COLUMNS = ("id", "area", "lane", "topology", "upstream", "outcome", "failure", "layer")
_NO_PROPERTY = frozenset((*_COLUMNS, "python", *COMPONENTS))
_TEST_MODULE = re.compile(r"test_\w*|\w*_test|conftest")
_CRASHED = re.compile(r"worker '.*' crashed while running ")  # pytest-xdist
_HUNG = re.compile(r"Failed: Timeout [(>]|Timeout [(>].* from pytest-timeout")
_TEARDOWN = "failed on teardown"
_UNCOLLECTED = ("collection failure", "collection skipped")


@dataclass(frozen=True)
class CaseRun:
    """One case in one run. ``rerun`` is how often it was run again in it."""

    id: str
    area: str
    lane: str  # "" for a test that names none, as its topology
    topology: str
    outcome: Kind
    expected: bool  # has an expectation
    duration: float  # seconds
    message: str
    signature: str  # the message without what differs from run to run; "" if it did not fail
    layer: str
    upstream: tuple[str, ...]
    properties: dict[str, str]
    rerun: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Which case it is, and where."""
        return self.id, self.lane, self.topology


def case_run(path: Path, reported: Reported, *, ours: bool) -> CaseRun:
    """Read one test case; ``ours`` is one that this harness wrote.

    Raises BadInputError, naming the file, the case and the key, for values that can't be.
    """
    case, properties = reported.case, reported.properties
    name = str(case.name or "")
    try:
        ours = ours and "outcome" in properties
        return _own(reported) if ours else _foreign(reported, name)
    except (KeyError, ValueError) as error:
        raise BadInputError(f"{path}: test case {name[:200]!r}: {error}") from error


def is_second_failure(reported: Reported, *, ours: bool) -> bool:
    """Whether it is pytest's second element for a case that failed already: its teardown."""
    if ours and "outcome" in reported.properties:
        return True
    return any((entry.message or "").startswith(_TEARDOWN) for entry in reported.case.result)


def _own(reported: Reported) -> CaseRun:
    said = reported.properties
    for key in ("id", "lane", "topology"):
        if key not in said:
            raise ValueError(f"property {key!r} is missing")
    outcome = Kind(said["outcome"])
    failure = said.get("failure", "")
    return CaseRun(
        id=_id(said["id"]),
        area=said.get("area", ""),
        lane=said["lane"],
        topology=said["topology"],
        outcome=outcome,
        expected=bool(said.get("expectation")),
        duration=_seconds(reported),
        message=(failure or said.get("outcome_detail", ""))[:MOST_MESSAGE],
        signature=generalised(failure[:MOST_MESSAGE]) if failure else "",
        layer=said.get("layer", ""),
        upstream=tuple(said.get("upstream", "").split()),
        properties=_others(said),
    )


def _foreign(reported: Reported, name: str) -> CaseRun:
    case, said = reported.case, reported.properties
    entries: list[Any] = list(case)
    results = [entry for entry in entries if isinstance(entry, FinalResult)]
    again = [entry for entry in entries if isinstance(entry, InterimResult)]
    outcome = _outcome(results)
    message = next((_message(entry) for entry in (*results, *again)), "")
    file, id_ = _pytest_id(case, name)
    properties = _others(said)
    if any(isinstance(entry, FlakyFailure | FlakyError) for entry in again):
        properties["outcomes"] = f"{Kind.FAILED}, {outcome}"
    failed = outcome not in (Kind.PASSED, Kind.SKIPPED)
    return CaseRun(
        id=_id(id_),
        area=said.get("area", file.rpartition("/")[0]),
        lane=said.get("lane", ""),
        topology=said.get("topology", ""),
        outcome=outcome,
        expected=outcome in (Kind.EXPECTED_FAILURE, Kind.UNEXPECTED_PASS),
        duration=_seconds(reported),
        message=message[:MOST_MESSAGE],
        signature=generalised(message[:MOST_MESSAGE]) if failed else "",
        layer=said.get("layer", ""),
        upstream=tuple(said.get("upstream", "").split()),
        properties=properties,
        rerun=len(again),
    )


def _outcome(results: Sequence[FinalResult]) -> Kind:
    """What pytest, pytest-xdist and pytest-timeout write, in their words."""
    broken = next((entry for entry in results if isinstance(entry, Failure | Error)), None)
    if broken is not None:
        message = first_line(_message(broken))
        if message.startswith("[XPASS(strict)]"):
            return Kind.UNEXPECTED_PASS
        if _CRASHED.match(message):
            return Kind.CRASHED
        return Kind.HUNG if _HUNG.match(message) else Kind.FAILED
    skipped = next((entry for entry in results if isinstance(entry, Skipped)), None)
    if skipped is None:
        return Kind.PASSED
    return Kind.EXPECTED_FAILURE if skipped.type == "pytest.xfail" else Kind.SKIPPED


def _message(entry: Any) -> str:
    message, text = str(entry.message or ""), str(entry.text or "")
    # pytest says only where an error was; what it was stands in the text's marked lines.
    if message in ("", "collection failure") or message.startswith("failed on "):
        errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
        return "\n".join(errors) or message or text
    return message


def _pytest_id(case: Any, name: str) -> tuple[str, str]:
    """The file, if it is known, and the case as pytest names it on the command line."""
    parts = str(case.classname or "").split(".") if case.classname else []
    file = case._elem.attrib.get("file", "")  # junitparser knows it of suites only
    if not parts and any((entry.message or "") in _UNCOLLECTED for entry in case.result):
        file = file or f"{name.replace('.', '/')}.py"
        return file, file
    if file:
        module = file.removesuffix(".py").replace("/", ".").split(".")
        classes = parts[len(module) :] if parts[: len(module)] == module else []
        return file, "::".join((file, *classes, name))
    at = next((i for i, part in enumerate(parts) if _TEST_MODULE.fullmatch(part)), None)
    if at is not None:
        file = "/".join(parts[: at + 1]) + ".py"
        return file, "::".join((file, *parts[at + 1 :], name))
    return "", "::".join(filter(None, (".".join(parts), name)))


def _id(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a name, found none")
    if len(text) > _MOST_ID:
        raise ValueError(f"expected a name of at most {_MOST_ID} characters, found {len(text)}")
    return text


def _seconds(reported: Reported) -> float:
    written = reported.case._elem.attrib.get("time", "")
    try:
        seconds = float(reported.case.time or 0)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"attribute 'time': expected seconds, found {written[:50]!r}")
    return seconds


def _others(said: dict[str, str]) -> dict[str, str]:
    return {name: said[name][:MOST_MESSAGE] for name in said if name not in _NO_PROPERTY}
