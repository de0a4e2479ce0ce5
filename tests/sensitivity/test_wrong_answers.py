"""Wrong answers of the plugin: who asks for them sees them, and who does not is not blamed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.sensitivity import JAX_ALONE, sensitivity

from harness.sensitivity.answers import ANSWERS

pytestmark = pytest.mark.measures_coverage
_SEES = {
    "coordinates-swapped": "test_where_devices_are",
    "slice-index-off": "test_slices",
    "memory-kind-wrong": "test_memory_of_a_result",
    "donated-buffer-kept": "test_donated",
    "second-client-let-through": "test_each_client_discovers",
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Of each operator and test, what became of it."""
    folder = tmp_path_factory.mktemp("devices")
    shutil.copy(Path(__file__).parent / "user_devices.py", folder / "test_user.py")
    names = f"--operators={','.join(ANSWERS)}"
    given = ("test_user.py", "--json=s.json", names, "-n1")
    done = sensitivity(folder, *given, behind=["--topology=2x2", *JAX_ALONE])
    assert done.code == 0, done.stderr
    report = json.loads((folder / "s.json").read_text())
    assert report["red"] == {}
    return {
        (fault["operator"], fault["case"].partition("::")[2]): fault["verdict"]
        for fault in report["faults"]
    }


@pytest.mark.parametrize("name", ANSWERS)
def test_a_test_that_asks_sees_it(verdicts: dict[tuple[str, str], str], name: str) -> None:
    assert verdicts[name, _SEES[name]] == "seen"


def test_equal_programs_are_not_blamed(verdicts: dict[tuple[str, str], str]) -> None:
    blind = "test_that_asks_nothing_of_devices"
    assert verdicts["coordinates-swapped", blind] == "equivalent"
    assert verdicts["donated-buffer-kept", blind] == "not applied"


def test_nobody_is_blind(verdicts: dict[tuple[str, str], str]) -> None:
    assert [key for key, verdict in verdicts.items() if verdict == "not seen"] == []


def test_one_client_has_no_second_one(verdicts: dict[tuple[str, str], str]) -> None:
    tests = {test for name, test in verdicts if name == "second-client-let-through"}
    assert tests == {"test_each_client_discovers"}


@pytest.mark.long
def test_a_limit_that_nobody_could_miss_is_not_met(tmp_path: Path) -> None:
    """Every fault is equivalent, so nobody knows what share was seen."""
    shutil.copy(Path(__file__).parent / "user_devices.py", tmp_path / "test_user.py")
    given = ("test_user.py", "--fail-under=50", "--operators=coordinates-swapped", "-n1")
    done = sensitivity(tmp_path, *given, behind=["--topology=2x2", "-k=nothing", *JAX_ALONE])
    assert done.code == 1
    assert done.stderr.splitlines()[-1].endswith(
        "no fault that counts was planted in test_user.py"
    ), done.stderr
