"""Reports of an older format say the same as those of the present one, as far as they know."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.paths import ROOT

from harness.errors import BadInputError
from harness.junit import formats, report
from harness.junit.names import FORMAT

SAMPLES = sorted((ROOT / "fixtures" / "junit").glob("*.xml"))
ENTRY = {"expectation": "pytorch/xla#1"}
# What format 2 said of a case, and what it means.
OLD = {
    "passed": ({}, "passed", None, None),
    "skipped": ({}, "skipped", None, None),
    "failed": (
        {"failure": "SIGSEGV is the text of an error", **ENTRY},
        "failed",
        None,
        "expectation",
    ),
    "crashed": ({"failure": "SIGABRT in f", "signal": "SIGABRT"}, "crashed", None, None),
    "unexpected pass": (ENTRY, "passed", None, "expectation"),
}
EXPECTED_FAILURES = {
    "ValueError: no result after 3 s": "failed",
    "AssertionError: SIGABRT": "failed",
    "SIGABRT in get_stablehlo_bytecode (xla_model.py:1103): debug_macros.h:21]": "crashed",
    "exited with status 9 before its result": "crashed",
    "no result after 60 s in wait (threading.py:327)": "hung",
    "hung in a second discovery": "hung",
}


@pytest.mark.parametrize("outcome", OLD)
def test_format_2(outcome: str) -> None:
    said, actual, expected, by = OLD[outcome]
    found = formats.current({"outcome": outcome, **said}, "2")
    assert (found["actual"], found.get("expected"), found.get("expected_by")) == (
        actual,
        expected,
        by,
    )
    assert {"outcome": outcome, **said}.items() <= found.items()


@pytest.mark.parametrize("failure", EXPECTED_FAILURES)
def test_expected_failure_of_format_2(failure: str) -> None:
    said = {"outcome": "expected failure", "failure": failure, **ENTRY}
    found = formats.current(said, "2")
    actual = EXPECTED_FAILURES[failure]
    assert (found["actual"], found["expected"], found["expected_by"]) == (
        actual,
        actual,
        "expectation",
    )


def test_marker_of_pytest_in_format_2() -> None:
    found = formats.current({"outcome": "expected failure", **ENTRY}, "2")
    assert (found["actual"], found["expected_by"]) == ("failed", "pytest")
    assert "expected" not in found


def test_present_format_is_left_alone() -> None:
    said = {"outcome": "expected failure", "failure": "SIGABRT in f", "actual": "hung"}
    assert formats.current(said, FORMAT) == said
    assert formats.actual(said) == "hung"


def test_recorded_runs_of_format_2() -> None:
    """Each expected failure of the runs that were recorded with it, by how it failed."""
    counts: Counter[str] = Counter()
    for path in SAMPLES:
        for result in report.read(path).results.values():
            counts[result.actual] += result.outcome == "expected failure"
    assert +counts == {"failed": 532, "crashed": 32}


@pytest.mark.parametrize("said", ["", "exploded", "expected failure"])
def test_present_format_without_an_actual_outcome(tmp_path: Path, said: str) -> None:
    own = {"id": "a.py::b", "lane": "cpu", "topology": "4", "outcome": "passed", "actual": said}
    text = "".join(f'<property name="{name}" value="{value}"/>' for name, value in own.items())
    path = tmp_path / "report.xml"
    path.write_text(
        f'<testsuite><properties><property name="xla_harness_report" value="{FORMAT}"/>'
        "</properties>"
        f'<testcase name="b"><properties>{text}</properties></testcase></testsuite>'
    )
    with pytest.raises(BadInputError) as refused:
        report.read(path)
    assert (
        f"property 'actual': expected one of passed, failed, crashed, hung, skipped, found {said!r}"
        in str(refused.value)
    )
