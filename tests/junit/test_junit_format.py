"""The format of reports: what must be in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.junit_text import case
from support.junit_text import report as written

from harness.errors import BadInputError
from harness.junit import report
from harness.junit.result import Result
from harness.model.outcome import Kind


@pytest.mark.parametrize("actual_text", ["", "exploded", "expected failure"])
def test_present_format_without_an_actual_outcome(tmp_path: Path, actual_text: str) -> None:
    path = written(tmp_path / "report.xml", case("b", actual=actual_text))
    with pytest.raises(BadInputError) as refused:
        report.read(path)
    assert (
        f"property 'actual': expected one of passed, failed, crashed, hung, skipped, "
        f"found {actual_text!r}" in str(refused.value)
    )


@pytest.mark.parametrize(
    ("outcome", "properties", "actual"),
    [
        (Kind.EXPECTED_FAILURE, {"actual": "crashed"}, Kind.CRASHED),
        (Kind.EXPECTED_FAILURE, {}, Kind.FAILED),  # as pytest alone reports it
        (Kind.UNEXPECTED_PASS, {}, Kind.PASSED),
        (Kind.CONFLICT, {"actual": "failed"}, Kind.CONFLICT),
        (Kind.SKIPPED, {"actual": "passed"}, Kind.SKIPPED),  # its record can't be read
    ],
)
def test_what_happened(outcome: Kind, properties: dict[str, str], actual: Kind) -> None:
    """Of several results, or of none that can be read, no property says what happened."""
    result = Result("a.py::b", outcome=outcome, properties=properties)
    assert result.actual == actual
