"""Read one test case of a JUnit report: ours by its properties, those of any pytest by rule."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from junitparser.junitparser import Error, Failure, FinalResult, Skipped
from junitparser.xunit2 import FlakyError, FlakyFailure, InterimResult

from harness.diagnosis.cause import signature_of
from harness.diagnosis.signature import first_line
from harness.junit.properties import OF_A_CASE, OUTCOMES, interpreted, readable
from harness.junit.result import MOST_MESSAGE, Result
from harness.junit.stream import Reported
from harness.model.outcome import ACTUAL, DECLARABLE, Kind

_MOST_ID = 4000  # characters
_COLUMNS = ("id", "area", "lane", "topology", "upstream")
_OUTCOME = ("outcome", "failure", "layer", "signature")
_NO_PROPERTY = frozenset((*_COLUMNS, *_OUTCOME))
_PLACE = frozenset({"id", "lane", "topology"})
_TEST_MODULE = re.compile(r"test_\w*|\w*_test|conftest")
_CRASHED = re.compile(r"worker '.*' crashed while running ")  # pytest-xdist
_HUNG = re.compile(r"Failed: Timeout [(>]|Timeout [(>].* from pytest-timeout")
# What other runners' attributes ``status`` and ``result`` say of a case that has no such element.
_NOT_RUN = frozenset(
    {"notrun", "not run", "not_run", "disabled", "skipped", "suppressed", "ignored"}
)
_BROKEN = frozenset(
    {"fail", "failed", "failure", "error", "errored", "timeout", "crashed", "broken"}
)
_TEARDOWN = "failed on teardown"


def is_of_harness(reported: Reported, *, ours: bool) -> bool:
    """Return whether this harness ran the case; a report of ``ours`` may have plain tests, too."""
    return ours and not OF_A_CASE.isdisjoint(reported.properties)


def place_of(reported: Reported, *, ours: bool) -> Result:
    """Return which case it is and where it ran, as a result that was not measured.

    Raises ValueError, saying why, for one that can't be told.
    """
    properties = reported.properties
    _refuse_twice(reported, _PLACE & interpreted(ours=ours))
    if ours:
        for key in ("id", "lane", "topology"):
            if key not in properties:
                raise ValueError(f"property {key!r} is missing")
        return Result(
            _id(properties["id"]),
            properties.get("area", ""),
            properties["lane"],
            properties["topology"],
        )
    file, id_ = _pytest_id(reported.case, str(reported.case.name or ""))
    area = properties.get("area", file.rpartition("/")[0])
    return Result(_id(id_), area, properties.get("lane", ""), properties.get("topology", ""))


def result_of(place: Result, reported: Reported, *, ours: bool) -> Result:
    """Read one test case at its place; ``ours`` is one that this harness ran.

    Raises ValueError, naming the key, for values that can't be.
    """
    _refuse_twice(reported, interpreted(ours=ours))
    return _own(place, reported) if ours else _foreign(place, reported)


def is_teardown(reported: Reported) -> bool:
    """Return whether the element is only about the teardown; pytest adds one to a failure."""
    return any((entry.message or "").startswith(_TEARDOWN) for entry in reported.case.result)


def is_file(case: Any) -> bool:
    """Return whether the element stands for a module whose cases were not collected."""
    return not case.classname and any(
        (entry.message or "") in ("collection failure", "collection skipped")
        for entry in case.result
    )


def error_lines(text: str) -> list[str]:
    """Return the lines of pytest's text of a failure that it marks as the error's own."""
    return [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]


def _refuse_twice(reported: Reported, names: frozenset[str]) -> None:
    for name in sorted(reported.twice & names):
        raise ValueError(f"property {name!r}: expected it once, found it several times")


def _own(place: Result, reported: Reported) -> Result:
    properties = readable(reported.properties, ours=True)
    if "outcome" not in properties:
        raise ValueError("property 'outcome' is missing")
    failure, outcome = properties.get("failure", ""), Kind(properties["outcome"])
    if outcome == Kind.PASSED and any(isinstance(e, Failure | Error) for e in reported.case):
        raise ValueError("property 'outcome': found 'passed' beside a failure")
    if properties.get("actual") not in ACTUAL:
        raise ValueError(
            f"property 'actual': expected one of {', '.join(ACTUAL)}, "
            f"found {properties.get('actual', '')[:50]!r}"
        )
    return replace(
        _common(place, reported, properties),
        outcome=outcome,
        expected=bool(properties.get("expectation")),
        message=(failure or properties.get("outcome_detail", ""))[:MOST_MESSAGE],
        signature=_signature(place, properties, failure),
    )


def _signature(place: Result, properties: Mapping[str, str], failure: str) -> str:
    """Return the recorded signature of a failure; a report may be older than that property."""
    if not failure and properties["actual"] not in DECLARABLE:
        return ""
    recorded = properties.get("signature", "")[:MOST_MESSAGE]
    return recorded or signature_of(place.id, failure[:MOST_MESSAGE])


def _foreign(place: Result, reported: Reported) -> Result:
    own = readable(reported.properties, ours=False)
    entries: list[Any] = list(reported.case)
    results = [entry for entry in entries if isinstance(entry, FinalResult)]
    again = [entry for entry in entries if isinstance(entry, InterimResult)]
    outcome, message = _outcome(results), ""
    if outcome == Kind.PASSED:
        outcome, message = _by_attributes(reported.case._elem.attrib)
    message = next((_message(entry) for entry in (*results, *again)), message)
    if any(isinstance(entry, FlakyFailure | FlakyError) for entry in again):
        own[OUTCOMES] = f"{Kind.FAILED}, {outcome}"
    failed = outcome not in (Kind.PASSED, Kind.SKIPPED)
    return replace(
        _common(place, reported, own),
        outcome=outcome,
        expected=outcome in (Kind.EXPECTED_FAILURE, Kind.UNEXPECTED_PASS),
        message=message[:MOST_MESSAGE],
        signature=signature_of(place.id, message[:MOST_MESSAGE]) if failed else "",
        rerun=len(again),
    )


def _common(place: Result, reported: Reported, own: Mapping[str, str]) -> Result:
    """Return the result with what every report says in the same way."""
    return replace(
        place,
        duration=seconds(reported.case._elem.attrib.get("time", "")),
        layer=own.get("layer", ""),
        upstream=tuple(own.get("upstream", "").split()),
        properties={name: own[name] for name in own if name not in _NO_PROPERTY},
    )


def _outcome(results: Sequence[FinalResult]) -> Kind:
    """Return the outcome, from the words of pytest, pytest-xdist and pytest-timeout."""
    broken = next((entry for entry in results if isinstance(entry, Failure | Error)), None)
    if broken is not None:
        message = first_line(_message(broken))
        if message.startswith("[XPASS(strict)]"):
            return Kind.UNEXPECTED_PASS
        if _CRASHED.match(message):
            return Kind.CRASHED
        return Kind.HUNG if _HUNG.match(message) else Kind.FAILED
    skipped = [entry for entry in results if isinstance(entry, Skipped)]
    if not skipped:
        return Kind.PASSED
    expected = any(entry.type == "pytest.xfail" for entry in skipped)  # also one subtest's
    return Kind.EXPECTED_FAILURE if expected else Kind.SKIPPED


def _by_attributes(attributes: Mapping[str, str]) -> tuple[Kind, str]:
    """Return the outcome by the attributes of a case without a result, as of gtest and CTest."""
    for name in ("status", "result"):
        word = attributes.get(name, "").lower()
        text = f"{name}={word!r}"
        if word in _NOT_RUN:
            return Kind.SKIPPED, text
        if word in _BROKEN:
            return Kind.FAILED, f"{text}, without a failure"
    return Kind.PASSED, ""


def _message(entry: Any) -> str:
    message, text = str(entry.message or ""), str(entry.text or "")
    # pytest says only where an error was; what it was stands in the text's marked lines.
    if message in ("", "collection failure") or message.startswith("failed on "):
        return "\n".join(error_lines(text)) or text or message
    return message


def _pytest_id(case: Any, name: str) -> tuple[str, str]:
    """Return the file, if it is known, and the case's id on pytest's command line."""
    parts = str(case.classname or "").split(".") if case.classname else []
    file = case._elem.attrib.get("file", "")  # junitparser knows it of suites only
    if is_file(case):
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


def seconds(written: str) -> float:
    """Parse the attribute ``time``. Raises ValueError if it is no duration."""
    try:
        duration = float(written.replace(",", "") or 0)
    except ValueError:
        duration = math.nan
    if not (math.isfinite(duration) and duration >= 0):
        raise ValueError(f"attribute 'time': expected seconds, found {written[:50]!r}")
    return duration
