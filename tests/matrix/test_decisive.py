"""The base runs only the cases whose answer there may speak against the candidate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.drift import INI, Drift
from support.two_stacks import report, result

from harness.expectations import Expectation, Expectations
from harness.matrix.decisive import settled
from harness.model.outcome import Kind

pytestmark = pytest.mark.measures_coverage

SUITE = """\
from pathlib import Path
import drift, pytest
from harness.lanes import events
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(1)]

@pytest.fixture(autouse=True)
def ran(request):
    events.write("client", {})  # here is no framework that has one
    with Path("reports/ran").open("a") as ran:
        ran.write(f"{request.node.originalname} {drift.VERSION}\\n")

def test_quick(): pass
def test_works(): pass
def test_regressed(): assert drift.VERSION == 1
def test_fixed(): assert drift.VERSION == 2, "broken on the base"
def test_unknown(): assert drift.VERSION == 2, "broken on the base"
def test_fails(): assert not drift.VERSION, "broken on both"
def test_fails_otherwise(): assert not drift.VERSION, f"broken on {drift.VERSION}"
def test_counted(record_property):
    record_property("host_calls_step", drift.VERSION * 100)
def test_missing():
    if drift.VERSION == 2:
        pytest.skip("not on the candidate")
"""
FILE = "suites/area/test_drift.py"
QUICK = f"{FILE}::test_quick[virtual-tpu-1]\n"
EXPECTED = """\
[[expectation]]
cases = ["suites/area/test_drift.py::test_fixed[*]"]
issue = "a/b#1"
reason = "it is broken on the base"
signature = "broken on the base"

[[expectation]]
cases = ["suites/area/test_drift.py::test_fails*[*]"]
issue = "a/b#2"
reason = "it is broken on both"
signature = "broken on both"
"""
SETTINGS = "xla_quick = quick.txt\nxla_expectations = fixtures/expectations\n"
ANSWER = "reports/answer.json"
COMMAND = ("qualify", "1", "2", "--json", ANSWER, "--no-attribution", "--reruns", "0")
BOTH = [
    *("test_counted", "test_fails_otherwise", "test_fixed"),
    *("test_missing", "test_quick", "test_regressed"),
]
# Failures that nothing declares, expectations that can go, skips, and what counts host work.
MEASURED_EACH_TIME = {
    *("test_regressed", "test_fails_otherwise", "test_fixed", "test_missing", "test_counted"),
}
ALL = sorted([*BOTH, "test_fails", "test_unknown", "test_works"])


@pytest.mark.parametrize("cause", ["a/b#1", "a/b#2"])
def test_the_base_is_asked_of_a_failure_of_another_cause(cause: str) -> None:
    fails = result("test_x", outcome=Kind.EXPECTED_FAILURE, properties={"expectation": "a/b#1"})
    entry = Expectation(Path(), 1, ("a.py::test_x[*]",), cause, "", Kind.FAILED, "no")
    assert settled(report(fails), Expectations([entry], {})) == [fails] * (cause == "a/b#1")


@pytest.mark.parametrize("fact", ["aot_programs_compiled", "aot_flops", "host_calls_step"])
def test_the_base_is_asked_where_facts_are_compared(fact: str) -> None:
    works = result("test_x", outcome=Kind.PASSED, properties={fact: "1"})
    assert settled(report(works), Expectations([], {})) == []


@pytest.fixture
def stacks(drift: Drift) -> Drift:
    (drift.path / FILE).write_text(SUITE)
    (drift.path / "pytest.ini").write_text(INI + SETTINGS)
    (drift.path / "quick.txt").write_text(QUICK)
    folder = drift.path / "fixtures" / "expectations"
    folder.mkdir(parents=True)
    (folder / "area.toml").write_text(EXPECTED)
    for version in "12":
        drift.stack(version, f"VERSION = {version}\n")
    return drift


def _ran(stacks: Drift) -> dict[str, list[str]]:
    """The names of the cases that ran on each stack since this was asked last."""
    file = stacks.path / "reports/ran"
    by_version: dict[str, list[str]] = {"1": [], "2": []}
    for line in file.read_text().splitlines() if file.exists() else []:
        name, version = line.split()
        by_version[version].append(name)
    file.unlink(missing_ok=True)
    return {version: sorted(names) for version, names in by_version.items()}


def _answer(stacks: Drift) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((stacks.path / ANSWER).read_text())
    return answer


def _verdicts(answer: dict[str, Any]) -> dict[str, str]:
    return {case["case"].split("::")[1].split("[")[0]: case["verdict"] for case in answer["cases"]}


DECIDED = {
    "test_regressed": "regressed",
    "test_missing": "missing",
    "test_fixed": "fixed",
    "test_counted": "slower",
    "test_fails": "still failing",
    "test_fails_otherwise": "still failing",
}


@pytest.mark.long
def test_the_base_runs_only_what_decides(stacks: Drift) -> None:
    done = stacks.run(*COMMAND)
    assert done.returncode == 1, done.stderr
    assert _ran(stacks) == {"1": BOTH, "2": ALL}
    answer = _answer(stacks)
    assert _verdicts(answer) == DECIDED
    assert answer["not_run_on_base"] == 3
    assert answer["counts"]["unchanged"] == 3
    left_out = "2 of the unchanged cases and 1 of the still failing cases were not run on 1, where"
    assert left_out in " ".join(done.stdout.split())
    assert left_out in (stacks.path / "reports/qualify/1..2/summary.md").read_text()

    again = stacks.run(*COMMAND)
    assert again.returncode == 1
    own, reused = re.subn(r"Reused: [^.]+\.\n", "", again.stdout)
    assert (own, reused) == (done.stdout, 1)
    ran = _ran(stacks)
    # Any other one may be among those that run again to check that their result can be reused.
    assert set(ran["2"]) >= MEASURED_EACH_TIME
    assert "of them reused" in again.stderr


@pytest.mark.long
def test_every_case_runs_on_the_base_when_that_is_asked(stacks: Drift) -> None:
    done = stacks.run(*COMMAND, "--every-case")
    assert done.returncode == 1, done.stderr
    assert _ran(stacks) == {"1": ALL, "2": ALL}
    assert _verdicts(_answer(stacks)) == {**DECIDED, "test_unknown": "fixed"}
    assert _answer(stacks)["not_run_on_base"] == 0

    # What the base said in full is better than what is left out.
    done = stacks.run(*COMMAND)
    assert done.returncode == 1, done.stderr
    assert set(_ran(stacks)["2"]) >= MEASURED_EACH_TIME
    assert _verdicts(_answer(stacks)) == {**DECIDED, "test_unknown": "fixed"}


@pytest.mark.long
def test_declared_failures_are_rerun_when_every_case_is_asked_for(stacks: Drift) -> None:
    for options, rerun in (((), False), (("--every-case",), True)):
        done = stacks.run(*COMMAND[:-2], *options)
        assert done.returncode == 1, done.stderr
        (fixed,) = (case for case in _answer(stacks)["cases"] if "test_fixed" in case["case"])
        assert bool(fixed["rerun_cases"]) is rerun


@pytest.mark.long
def test_without_expectations_the_base_runs_every_case(stacks: Drift) -> None:
    (stacks.path / "fixtures/expectations/area.toml").unlink()
    (stacks.path / "fixtures/expectations").rmdir()
    (stacks.path / "pytest.ini").write_text(f"{INI}xla_quick = quick.txt\n")
    done = stacks.run(*COMMAND)
    assert done.returncode == 1, done.stderr
    assert _ran(stacks) == {"1": ALL, "2": ALL}
