"""The checks that run no test: each finds a planted fault, and each is written once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_program
from support.paths import ROOT

BIN = Path(sys.executable).parent
CHECKS = ".ci/checks"
FAULTS = {
    "lint": ("harness/planted.py", "import os\n"),
    "names": ("suites/unnamed.py", "def f(found: int) -> None: ...\n"),
    "format": ("suites/planted.py", "x  =  1\n"),
    "format-c": ("tests/planted.c", "int  f( void ){return 0;}\n"),
    "spelling": ("docs/planted.md", "Errors are rec" + "ieved.\n"),
    "imports": ("harness/model/planted.py", "from harness.junit import case\n"),
}
AREAS = ("suites/dtensor/planted.py", "from suites.collectives import checks\n")


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "UV_PROJECT_ENVIRONMENT": str(BIN.parent),
    }
    return run_program(folder / CHECKS, *names, env=environment)


@pytest.mark.long
def test_every_planted_fault_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    for path, text in (*FAULTS.values(), AREAS):
        (copy / path).write_text(text)
    subprocess.run(["git", "add", "--all"], cwd=copy, check=True)
    done = run(copy, *FAULTS)
    assert (done.returncode, done.stderr) == (1, f"failed: {' '.join(FAULTS)}\n"), done.stdout
    for message in (
        "F401",
        "suites/unnamed.py:1: found: expected a noun",
        "planted.c:1:",
        "==> received",
        ".model -> .junit",
        "suites.dtensor is not allowed to import suites.collectives",
        "be reformatted",
    ):
        assert message in done.stdout


def test_a_check_that_does_not_exist() -> None:
    done = run(ROOT, "lint", "typos")
    assert done.returncode == 2
    assert "typos: expected one of" in done.stderr


def test_each_check_is_written_once() -> None:
    """A person, .ci/run and ci.yml call the one script."""
    script = (ROOT / CHECKS).read_text()
    tools = [re.split(r"[ .]+", entry)[0] for entry in re.findall(r'\]="\.?([^"]+)"', script)]
    assert len(tools) == 9
    for path in (ROOT / ".ci/run", ROOT / ".github/workflows/ci.yml"):
        text = path.read_text()
        assert CHECKS in text
        assert [tool for tool in tools if re.search(rf"\b{tool}\b", text)] == []
