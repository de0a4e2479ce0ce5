"""The format of reports: what must be in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import ROOT

from harness.errors import BadInputError
from harness.junit import report
from harness.junit.names import FORMAT

SAMPLES = sorted((ROOT / "fixtures" / "junit").glob("*.xml"))


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


@pytest.mark.parametrize(
    ("inside", "outcome", "actual"),
    [
        ('<skipped type="pytest.xfail" message="x"/>', "expected failure", "failed"),
        ('<failure message="[XPASS(strict)] x"/>', "unexpected pass", "passed"),
        ('<failure message="x"/>', "failed", "failed"),
        ("", "passed", "passed"),
    ],
)
def test_what_happened_in_another_runners_case(
    tmp_path: Path, inside: str, outcome: str, actual: str
) -> None:
    path = tmp_path / "report.xml"
    path.write_text(f'<testsuite><testcase classname="a" name="b">{inside}</testcase></testsuite>')
    (result,) = report.read(path).results.values()
    assert (result.outcome, result.actual) == (outcome, actual)
