"""Reports of other runners say more than elements: attributes, counts, and times of suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli
from harness.errors import BadInputError
from harness.history.run import read_run

GTEST = """
<testsuites tests="5" failures="1" disabled="1" errors="0" timestamp="2026-11-20T10:00:00">
 <testsuite name="Sum" tests="5" failures="1" disabled="1" skipped="1" errors="0" time="0.1"
            timestamp="2026-11-20T10:00:00">
  <testcase name="Runs" status="run" result="completed" time="0.1" classname="Sum"/>
  <testcase name="DISABLED_Never" status="notrun" result="suppressed" time="0" classname="Sum"/>
  <testcase name="FilteredOut" status="notrun" time="0" classname="Sum"/>
  <testcase name="Skips" status="run" result="skipped" time="0" classname="Sum">
   <skipped message="no chip"/></testcase>
  <testcase name="Fails" status="run" result="completed" time="0" classname="Sum">
   <failure message="sums differ" type=""/></testcase>
 </testsuite>
</testsuites>
"""
CTEST = """
<testsuite name="Linux-c++" tests="4" failures="1" disabled="1" skipped="1" hostname=""
           time="1" timestamp="2026-11-20T10:00:00">
 <testcase name="good" classname="good" time="0.1" status="run"/>
 <testcase name="off" classname="off" time="0" status="disabled"/>
 <testcase name="absent" classname="absent" time="0" status="notrun">
  <skipped message="SKIP_RETURN_CODE=77"/></testcase>
 <testcase name="bad" classname="bad" time="0.1" status="fail"><failure message=""/></testcase>
</testsuite>
"""
BAZEL = """
<testsuites><testsuite name="//a:b_test" tests="1" failures="0" errors="1"
  timestamp="2026-11-20T10:00:00">
 <testcase name="//a:b_test" status="run" duration="0" time="0">
  <error message="exited with error code 1"/></testcase></testsuite></testsuites>
"""
ABSL = """
<testsuites tests="3" failures="0" errors="0" timestamp="2026-11-20T10:00:00">
 <testsuite name="T" tests="3" failures="0" errors="0" timestamp="2026-11-20T10:00:00">
  <testcase name="test_a" status="run" result="completed" time="0" classname="m.T"/>
  <testcase name="test_b" status="notrun" result="suppressed" time="0" classname="m.T"/>
  <testcase name="test_c" status="failed" time="0" classname="m.T"/>
 </testsuite></testsuites>
"""
SUREFIRE = """
<testsuite name="T" tests="3" errors="0" failures="0" skipped="1" flakes="1"
           timestamp="2026-11-20T10:00:00">
 <testcase name="a" classname="T" time="0"><flakyFailure message="once" type="E"/></testcase>
 <testcase name="b" classname="T" time="0"><skipped/></testcase>
 <testcase name="c" classname="T" time="0"/>
</testsuite>
"""
SAID = {
    "gtest": (GTEST, ["passed", "skipped", "skipped", "skipped", "failed"]),
    "ctest": (CTEST, ["passed", "skipped", "skipped", "failed"]),
    "bazel": (BAZEL, ["failed"]),
    "absl": (ABSL, ["passed", "skipped", "failed"]),
    "surefire": (SUREFIRE, ["passed", "skipped", "passed"]),
}


def _write(folder: Path, text: str) -> Path:
    path = folder / "report.xml"
    path.write_text(text.strip(), encoding="utf-8")
    return path


@pytest.mark.parametrize("runner", SAID)
def test_what_another_runner_says(tmp_path: Path, runner: str) -> None:
    text, outcomes = SAID[runner]
    run = read_run(_write(tmp_path, text))
    assert sorted(case.outcome for case in run.cases) == sorted(outcomes)
    assert all(case.message for case in run.cases if "DISABLED" in case.id)


CASE = '<testcase name="{}" classname="T" time="0"/>'
CONTRADICTIONS = {
    "a suite": f'<testsuite name="S" failures="3" timestamp="2026-11-20">{CASE}</testsuite>',
    "errors": f'<testsuite name="S" errors="1" timestamp="2026-11-20">{CASE}</testsuite>',
    "one of two": f'<testsuites><testsuite name="R" failures="0" timestamp="2026-11-20">{CASE}'
    f'</testsuite><testsuite name="S" failures="2">{CASE}</testsuite></testsuites>',
    "a failure of no case": f'<testsuite name="S" timestamp="2026-11-20">{CASE}'
    '<error message="the class could not be set up"/></testsuite>',
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_suite_whose_cases_say_otherwise(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path, CONTRADICTIONS[kind])
    assert cli.main(["record", str(path), "--history", str(tmp_path / "history")]) == 2
    assert f"{path}: suite 'S': " in capsys.readouterr().err
    assert not (tmp_path / "history").exists()


def test_suites_of_other_years_are_not_one_run(tmp_path: Path) -> None:
    """The earliest one's time is the run's, but no run takes years."""
    suites = (
        f'<testsuite name="{n}" timestamp="{stamp}">{CASE.format(n)}</testsuite>'
        for n, stamp in enumerate(("2016-03-01T00:00:00", "2026-11-20T10:00:00"))
    )
    path = _write(tmp_path, f"<testsuites>{''.join(suites)}</testsuites>")
    with pytest.raises(BadInputError, match=r"found 2016-03-01T.* and 2026-11-20T.*: give --time"):
        read_run(path)
    line = ["record", str(path), "--time", "2026-11-20", "--history", str(tmp_path / "history")]
    assert cli.main(line) == 0
