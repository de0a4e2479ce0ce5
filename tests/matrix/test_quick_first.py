"""The quick cases' answer comes first, and no case of theirs runs twice."""

from __future__ import annotations

import json

import pytest
from support.drift import GOOD, INI, NO_DOUBLE, Drift

pytestmark = pytest.mark.measures_coverage

SUITE = """\
import time
from pathlib import Path
import drift, pytest
from harness.lanes import events
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(1)]

@pytest.mark.parametrize("n", range(1, 5))
def test_double(n):
    while n > 2 and Path("reports/hold").exists():
        time.sleep(0.1)
    events.write("client", {})  # here is no framework that has one
    with Path("reports/ran").open("a") as ran:
        ran.write(f"{n} {drift.double(3)}\\n")
    assert drift.double(n) == 2 * n, "double"
"""
FILE = "suites/area/test_drift.py"
QUICK = "".join(f"{FILE}::test_double[virtual-tpu-1-{n}]\n" for n in (1, 2, 9))
ANSWER = "reports/answer.json"
COMMAND = ("qualify", "1", "2", "--json", ANSWER, "--no-attribution", "--reruns", "0")
OTHERS = "Still open: all other cases."


@pytest.fixture
def stacks(drift: Drift) -> Drift:
    (drift.path / FILE).write_text(SUITE)
    (drift.path / "pytest.ini").write_text(f"{INI}xla_quick = quick.txt\n")
    (drift.path / "quick.txt").write_text(QUICK)
    drift.stack("1", GOOD)
    drift.stack("2", NO_DOUBLE)
    return drift


def _interrupted(stacks: Drift, candidate: str, *command: str) -> str:
    """What the command prints until Ctrl-C once the other cases run."""
    done = stacks.interrupt(f"reports/matrix/{candidate}/virtual-tpu-rest.log", *command)
    assert done.returncode == 130, done.stderr
    assert "has what is known, still open: all other cases" in done.stderr
    return done.stdout


def test_the_quick_cases_come_first(stacks: Drift) -> None:
    (stacks.path / "reports/hold").touch()
    output = _interrupted(stacks, "2", *COMMAND)
    (stacks.path / "reports/hold").unlink()
    assert " answer of the quick cases " in output
    assert OTHERS in output
    assert "1 regressed, 1 unchanged." in output
    first = json.loads((stacks.path / ANSWER).read_text())
    assert first["open"] == {"cases": True, "reruns": 0, "attributions": 0}

    done = stacks.run(*COMMAND)
    assert done.returncode == 1, done.stderr
    assert "1 virtual-tpu-quick: kept reports/matrix/" in done.stderr
    assert "2 virtual-tpu-quick: kept" not in done.stderr  # it has a failure
    assert done.stdout.count(" answer of the quick cases ") == 1
    assert "3 regressed, 1 unchanged." in done.stdout
    assert json.loads((stacks.path / ANSWER).read_text())["counts"] == {
        "regressed": 3, "unchanged": 1,
    }  # fmt: skip
    ran = (stacks.path / "reports/ran").read_text().splitlines()
    # A failure is measured each time, and any other case may run again as a check.
    assert ran.count("1 9") == 2
    assert set(ran) == {f"{n} {double}" for n in range(1, 5) for double in (6, 9)}
    assert len(ran) <= 2 * len(set(ran))


def test_quick_cases_alone_qualify_nothing(stacks: Drift) -> None:
    stacks.stack("3", GOOD.replace("n // 2", "n / 2"))
    (stacks.path / "reports/hold").touch()
    output = _interrupted(stacks, "3", "qualify", "1", "3", *COMMAND[3:])
    assert "2 unchanged." in output
    assert "Can't tell yet: nothing regressed among the quick cases." in output
    answer = json.loads((stacks.path / ANSWER).read_text())
    assert answer["exit_code"] == 2


def test_chosen_files_have_one_answer(stacks: Drift) -> None:
    done = stacks.run(*COMMAND, "--", FILE)
    assert done.returncode == 1, done.stderr
    assert OTHERS not in done.stdout
    assert "3 regressed, 1 unchanged." in done.stdout


def test_a_list_of_quick_cases_that_is_not_there(stacks: Drift) -> None:
    (stacks.path / "quick.txt").unlink()
    done = stacks.run(*COMMAND)
    assert done.returncode == 2
    assert "file of cases: quick.txt: " in done.stderr
