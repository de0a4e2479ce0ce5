"""Causes: what tells two failures apart, and that every reader of a run counts the same ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.project import Project

from harness.dashboard.pages.failures_page import causes
from harness.dashboard.site_facts import Facts
from harness.diagnosis.cause import signature_of
from harness.history.run import RunMetadata
from harness.history.store import History
from harness.issues.actions import decide
from harness.junit.report import read
from harness.render import nightly_text
from harness.verdicts.nightly import judge
from harness.verdicts.regressions import state

CASES = """\
pytestmark = pytest.mark.lanes("cpu")
BAD = bool(os.environ.get("BAD"))
@pytest.mark.parametrize("n", range(3))
def test_raises(n):
    if BAD: raise ValueError(f"{n} words")
def test_raises_elsewhere():
    if BAD: raise ValueError("7 words")
@pytest.mark.parametrize("n", [1, 2])
def test_asserts(n): assert not BAD
def test_asserts_too(): assert not BAD
def test_compares():
    if BAD: torch.testing.assert_close(torch.ones(2), torch.zeros(2))
def test_crashes():
    if BAD: os.abort()
def test_says_nothing():
    if BAD: raise ValueError
def test_passes(): pass
"""


@pytest.mark.parametrize(
    ("case", "failure", "expected"),
    [
        ("a.py::t[x::y]", "ValueError: 3 words", "ValueError: N words"),
        ("a.py::t[x::y]", "assert 3 == 4", "a.py::t: assert N == N"),
        (
            "a.py::C::t[x]",
            "AssertionError: assert 3 == 4",
            "a.py::C::t: AssertionError: assert N == N",
        ),
        ("a.py::t[x]", "", "a.py::t"),
    ],
)
def test_signature(case: str, failure: str, expected: str) -> None:
    assert signature_of(case, failure) == expected


def test_terminal_night_issues_and_page_count_the_same_causes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("suites/area/test_inner.py", CASES)
    history = History(tmp_path / "history")
    for day, bad in ((1, ""), (2, "1")):
        ran = project.run("--topology=4", BAD=bad)
        history.record([ran.junit], RunMetadata(stack="s", time=datetime(2026, 3, day, tzinfo=UTC)))
    in_terminal = int(re.findall(r" unexpected: 10, (\d+) causes ", ran.stdout)[0])
    broken = [result for result in read(ran.junit).results.values() if not result.works]
    recorded = {result.cause for result in broken}

    run, _ = history.find("latest")
    connection = history.connect()
    night = judge(connection, [run])
    pages = causes(Facts(connection, 30))
    issues = decide(state(connection), [])

    assert len(recorded) == 6
    assert {each.cause for each in night.causes} == recorded
    assert in_terminal == len(night.causes) == len(issues) == len(pages) == len(recorded)
    assert f" failures by cause: {len(pages)} " in "\n".join(nightly_text.lines(night))
