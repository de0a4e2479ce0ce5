"""A qualification step by step: the first answer, representatives, doubt, attribution, resuming."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from support.drift import Drift, wheel
from support.drift import project as drift_project

pytestmark = pytest.mark.measures_coverage

SUITE = """\
import time
from pathlib import Path
import drift, other, pytest
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(1)]

@pytest.fixture
def again(request):
    chosen = bool(request.config.getoption("--cases"))
    while chosen and Path("reports/hold").exists():
        time.sleep(0.1)
    return chosen

@pytest.mark.parametrize("n", range(1, 9))
def test_double(n, again):
    assert drift.double(n) == 2 * n, "double"

@pytest.mark.parametrize("n", range(4))
def test_other(n, again):
    assert other.RIGHT, "other"

@pytest.mark.parametrize("n", range(5))
def test_shaky(n, again):
    assert drift.double(3) == 6 or (again and n in (0, 1)), "shaky"
"""
WRONG = "def double(n): return 0\n"
RIGHT = "def double(n): return 2 * n\n"
FILE = "suites/area/test_drift.py"
COMMAND = ("qualify", "1", "2", "--lanes", "cpu", "--json", "reports/answer.json")


@dataclass(frozen=True)
class Told:
    """What one command printed, how it ended, and the JSON that it left."""

    code: int
    output: str
    errors: str
    answer: dict[str, Any]

    @property
    def cases(self) -> dict[str, dict[str, Any]]:
        return {f["case"].partition("::")[2]: f for f in self.answer["cases"]}


def told(drift: Drift, code: int, output: str, errors: str) -> Told:
    answer = json.loads((drift.path / "reports/answer.json").read_text())
    return Told(code, output, errors, answer)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory, environments_cache: Any) -> Drift:
    made = drift_project(tmp_path_factory.mktemp("qualify"), environments_cache)
    (made.path / FILE).write_text(SUITE)
    for name, code in (("1", RIGHT), ("2", WRONG)):
        wheel(made.path / "wheels", name, f"RIGHT = {name == '1'}\n", name="other")
        made.stack(name, code, pins=f'drift = "{name}"\nother = "{name}"')
    return made


@pytest.fixture(scope="module")
def interrupted(stacks: Drift) -> Told:
    """Ctrl-C while the representatives are rerun."""
    hold = stacks.path / "reports/hold"
    hold.touch()
    done = stacks.interrupt("reports/qualify/1..2/rerun-1/2/cpu.log", *COMMAND)
    hold.unlink()
    return told(stacks, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def finished(stacks: Drift, interrupted: Told) -> Told:
    """The same command again."""
    assert interrupted.code
    done = stacks.run(*COMMAND)
    return told(stacks, done.returncode, done.stdout, done.stderr)


def test_the_first_answer_comes_before_the_reruns(interrupted: Told) -> None:
    assert interrupted.code == 130
    assert "regressed: 17" in interrupted.output
    assert " first answer " in interrupted.output
    assert " answer -" not in interrupted.output.replace(" first answer -", "")
    assert "Still open: 9 cases to rerun, 3 causes to attribute." in interrupted.output
    assert "interrupted: reports/qualify/1..2/summary.md has what is known" in interrupted.errors
    assert interrupted.answer["open"] == {"cases": False, "reruns": 9, "attributions": 3}
    assert all(not f["rerun_cases"] and not f["component"] for f in interrupted.cases.values())


@pytest.mark.long
def test_the_same_command_continues(stacks: Drift, finished: Told) -> None:
    assert "1 cpu: kept reports/matrix/" in finished.errors
    assert "2 cpu: 17 failed" in finished.errors  # failures are measured again
    assert finished.answer["open"] == {"cases": False, "reruns": 0, "attributions": 0}
    once_more = stacks.run(*COMMAND)
    assert (once_more.stdout, once_more.returncode) == (finished.output, finished.code)
    assert once_more.stderr.count(": running") == 1
    assert "swaps: kept" in once_more.stderr
    assert "rerun-all-1: kept" in once_more.stderr


@pytest.mark.long
def test_representatives_stand_for_their_cause(stacks: Drift, finished: Told) -> None:
    doubles = {n: finished.cases[f"test_double[cpu-1-{n}]"] for n in range(1, 9)}
    assert {f["verdict"] for f in doubles.values()} == {"regressed"}
    chosen = [f"{FILE}::test_double[cpu-1-{n}]" for n in (1, 5, 8)]
    for number, case in doubles.items():
        itself = number in (1, 5, 8)
        assert sorted(case["rerun_cases"]) == ([case["case"]] if itself else chosen)
    assert "rerun: 3, for 5 others; attributed: 1, for 7 others" in finished.output
    assert "rerun: 3, for 1 other; attributed: 1, for 3 others" in finished.output  # test_other
    assert "rerun: 3, for 5 others" in (stacks.path / "reports/qualify/1..2/summary.md").read_text()


def test_a_flaky_representative_has_its_whole_cause_rerun(finished: Told) -> None:
    shaky = {n: finished.cases[f"test_shaky[cpu-1-{n}]"] for n in range(5)}
    verdicts = {n: f["verdict"] for n, f in shaky.items()}
    assert verdicts == {0: "flaky", 1: "flaky", 2: "regressed", 3: "regressed", 4: "regressed"}
    assert all(f["rerun_cases"] == [f["case"]] for f in shaky.values())


def test_each_cause_is_attributed_by_one_case(finished: Told) -> None:
    carried = {
        name.partition("[")[0]: (f["component"], f["attributed_case"])
        for name, f in finished.cases.items()
        if f["verdict"] == "regressed"
    }
    assert carried == {
        "test_double": ("drift", f"{FILE}::test_double[cpu-1-1]"),
        "test_other": ("other", f"{FILE}::test_other[cpu-1-0]"),
        "test_shaky": ("drift", f"{FILE}::test_shaky[cpu-1-2]"),
    }


@pytest.mark.long
def test_swaps_whose_pins_do_not_go_together(drift: Drift) -> None:
    for name, code in (("21", RIGHT), ("22", WRONG)):  # the cache has swaps of 1 and 2
        drift.stack(name, pins=f'drift = "{name}"\nother = "{name}"')
        wheel(drift.path / "wheels", name, "RIGHT = True\n", name="other")
        wheel(drift.path / "wheels", name, code, needs=f"other=={name}")
    (drift.path / FILE).write_text(SUITE)
    command = ("qualify", "21", "22", *COMMAND[3:], "--reruns", "0", "--", "-k", "double")
    done = drift.run(*command)
    assert done.returncode == 1, done.stderr
    output_read = told(drift, done.returncode, done.stdout, done.stderr)
    assert "the pins don't fit together" in output_read.errors
    assert {f["component"] for f in output_read.cases.values()} == {
        "undecided: nothing was measured with drift or other swapped"
    }
    assert "What differs was not rerun: flaky cases may be among it." in output_read.output
