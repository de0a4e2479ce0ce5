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
