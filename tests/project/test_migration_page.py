"""The page about moving to another framework is made from recorded runs, and is the newest."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.paths import ROOT
from support.project import Project
from support.two_frameworks import asked, run_both
from support.two_stacks import report, result

from harness.junit.report import Report
from harness.model.outcome import Kind

MADE: Mapping[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate" / "migration.py"))
FINDING = "finding barrier-does-not-wait"
LINK = "findings.md#barrier-does-not-wait"
page: Callable[..., str] = MADE["page"]


@pytest.fixture(scope="module")
def reports(shared_project: Project) -> Callable[[str], Report]:
    return run_both(shared_project)


@pytest.fixture(scope="module")
def made(reports: Callable[[str], Report], shared_project: Project) -> str:
    return page([reports("old")], [reports("new")], shared_project.path)


def test_it_is_what_the_recorded_runs_say() -> None:
    now = page(*(MADE["recorded"](MADE[name]) for name in ("BASE", "CANDIDATE")))
    text = (ROOT / "docs" / "migration.md").read_text()
    assert text == now, "run: uv run python docs/generate/migration.py"


@pytest.mark.parametrize("name", ["BASE", "CANDIDATE"])
def test_recorded_runs_name_no_folder_of_the_machine(name: str) -> None:
    """Files that can't be collected are told by their absolute paths."""
    text = (ROOT / "fixtures" / "migration" / f"{MADE[name]}.xml").read_text()
    assert "suites/" in text
    assert not re.findall(r"/[^'\"<> ]+/suites/\w+/test_", text)


def test_areas_have_the_cases_that_decide(made: str) -> None:
    assert "| test_asked.py | 2 | 1 | 1 | 2 | 1 | 1 | 1 |  |" in made
    area = made.partition("## Area test_asked.py")[2].partition("## ")[0]
    rows = [line for line in area.splitlines() if line.startswith("| ")][2:]
    first = asked("breaks", "zeta")
    assert rows[0] == (
        "| broken by moving | 1 | [pytorch/xla#8522](https://github.com/pytorch/xla/issues/8522) "
        f"| `{first}` | `AssertionError: zeta differs` |"
    )
    effects = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert effects == [
        *["broken by moving"] * 2,
        "not available after moving",
        "skipped after moving",
        "broken on both",
        "fixed by moving",
        *["works on both"] * 2,
        "only after moving",
    ]
    own = next(row for row in rows if asked("own", "acme") in row)
    assert "`left out: framework acme: not installed in this environment`" in own


def test_what_breaks_has_its_program(made: str) -> None:
    breaks = made.partition("### `test_asked.py::test_breaks`")[2].partition("###")[0]
    assert "): `AssertionError: zeta differs`\n" in breaks
    assert f"xla-harness repro '{asked('breaks', 'zeta')}' --stack new\n" in breaks
    assert (
        '```python\n@pytest.mark.upstream("pytorch/xla#8522")\n'
        'def test_breaks(framework): assert framework != "zeta", "zeta differs"\n```' in breaks
    )
    assert "test_fixed`\n" not in made.partition("## What breaks")[2]


def test_a_long_program_is_left_to_the_command(
    reports: Callable[[str], Report], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("long")
    long = "def test_breaks():\n" + "    pass\n" * 15
    (folder / "test_asked.py").write_text(long)
    sides = [reports("old")], [reports("new")]
    assert "```python" not in page(*sides, folder)
    (folder / "test_asked.py").write_text(long.replace("    pass\n", "", 1))
    assert page(*sides, folder).count("```python") == 1


def test_failures_of_one_cause_are_one() -> None:
    failures = ["3 of 8 differ", "5 of 9 differ", "no such operator"]

    def side(framework: str, *failures: str) -> list[Report]:
        return [
            report(
                result(
                    "x",
                    id=f"a.py::test_x[cpu-4-{framework}-{number}]",
                    outcome=Kind.FAILED if failure else Kind.PASSED,
                    failure=failure,
                    properties={"area": "a", "framework": framework, "expectation": FINDING},
                )
            )
            for number, failure in enumerate(failures)
        ]

    made = page(side("acme", *[""] * 3), side("zeta", *failures))
    breaks = made.partition("### `a.py::test_x`")[2]
    assert breaks.splitlines()[2:4] == [
        f"- 2 cases ([{FINDING}]({LINK})): `3 of 8 differ`",
        f"- 1 case ([{FINDING}]({LINK})): `no such operator`",
    ]
    assert breaks.count("xla-harness repro") == 2


def test_without_two_frameworks_it_says_so(reports: Callable[[str], Report]) -> None:
    old = reports("old")
    assert "There is no recorded run of torch_tpu-0.2.0 yet." in page([old], [])
    assert "not of two frameworks" in page([old], [replace(old, stack="new")])
