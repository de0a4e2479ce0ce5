"""The project under test is imported as a pytest in that project imports it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from support.drift import Drift
from support.paths import ROOT

from harness.errors import BadInputError
from harness.matrix.cell import Cell
from harness.matrix.home import home_of, project_of, seen_from, sources
from harness.stacks.stack import Stack

TESTS = """\
import os
import drift, mytrain, mylib, named
import pytest

def test_step():
    assert mytrain.step(drift.double(3)) == 7

def test_of_its_folder():
    assert open("tests/data.txt").read() == "7"

@pytest.mark.lanes("cpu")
@pytest.mark.topologies(1)
def test_of_a_lane():
    assert mylib.ROOT == named.ROOT == "mine"
"""


def put(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


CLONE = ("clone/x", "mine/tests/t.py")


@pytest.mark.parametrize(
    ("files", "here", "given", "home_and_root"),
    [
        (["pyproject.toml", "tests/t.py"], ".", "tests", (".", ".")),
        (["mine/pyproject.toml", *CLONE], "clone", "../mine/tests", ("mine", "mine")),
        (["mine/setup.py", *CLONE], ".", "mine/tests/t.py::test_a", ("mine", "mine")),
        (["mine/pytest.ini", "mine/a/tests/t.py"], "mine/a", "tests", ("mine/a", "mine")),
        (["mine/tests/t.py"], ".", "mine/tests", (".", "mine")),
        ([*CLONE], "clone", "../mine/tests", ("mine", "mine")),
        (["mine/.git/x", "mine/a/t/t.py", *CLONE], "clone", "../mine/a/t", ("mine", "mine")),
        (["mine/tests/__init__.py", *CLONE], "clone", "../mine/tests/t.py", ("mine", "mine")),
    ],
)
def test_the_folder_to_run_in(
    tmp_path: Path, files: list[str], here: str, given: str, home_and_root: tuple[str, str]
) -> None:
    folder = put(tmp_path, *files) / here
    homes = home_of(["-q", given], folder), project_of(["-q", given], folder)
    assert homes == tuple((tmp_path / name).resolve() for name in home_and_root)


def test_paths_are_seen_from_there(tmp_path: Path) -> None:
    clone = put(tmp_path, "mine/pyproject.toml", "mine/tests/t.py", "clone/tests/x", "clone/mine/x")
    here = clone / "clone"
    given = ["../mine/tests/t.py::test_a", "-k", "tests", "--ignore=../mine/tests", "-x", "-v"]
    home = home_of(given, here)
    assert seen_from(home, given, here) == (
        f"{here}/../mine/tests/t.py::test_a", "-k", "tests", f"--ignore={here}/../mine/tests", "-x",
        "-v",
    )  # fmt: skip
    assert seen_from(here, given, here) == tuple(given)


def test_sources_of_a_project(tmp_path: Path) -> None:
    put(tmp_path, "a.py", "src/b/c.py", "src/stacks/d.py", "fixtures/stacks/e.toml", "data.bin")
    put(tmp_path, ".venv/f.py", "env/pyvenv.cfg", "env/lib/g.py", "x/site-packages/h.py")
    names = [str(path.relative_to(tmp_path)) for path in sources(tmp_path)]
    assert names == ["a.py", "src/b/c.py", "src/stacks/d.py"]


@pytest.mark.long
def test_qualify_of_a_project_elsewhere(shared_drift: Drift) -> None:
    """Run from another folder, as a clone of the harness; then once more, with a change in it."""
    mine = shared_drift.path / "elsewhere" / "mine"
    for name, text in {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\nxla_preload = ""\n',
        "mytrain/__init__.py": "def step(x): return x + 1\n",
        "src/mylib.py": 'ROOT = "mine"\n',
        "lib/named.py": 'ROOT = "mine"\n',
        "tests/test_mine.py": TESTS,
        "tests/data.txt": "7",
    }.items():
        put(mine, name)
        (mine / name).write_text(text)
    own = ("--lanes", "cpu", "--reruns", "0", "--no-attribution")
    command = ("qualify", "1", "3", *own, "--", "elsewhere/mine/tests", "--topology", "1")
    first = shared_drift.run(*command, PYTHONPATH="elsewhere/mine/lib")
    log = shared_drift.path / "reports/matrix/1/cpu.log"
    assert "1 regressed, 2 unchanged" in first.stdout, first.stderr + log.read_text()
    built = hashlib.sha256((shared_drift.path / "wheels/drift-1-py3-none-any.whl").read_bytes())
    assert (
        f"drift-1-py3-none-any.whl sha256:{built.hexdigest()}"
        in log.with_suffix(".xml").read_text()
    )
    assert f"* drift          wheel {built.hexdigest()[:12]}" in first.stdout
    kept = shared_drift.run(*command, PYTHONPATH="elsewhere/mine/lib")
    assert "1 cpu: kept " in kept.stderr
    assert "3 cpu: 2 passed, 1 failed" in kept.stderr
    (mine / "mytrain/__init__.py").write_text("def step(x): return 7\n")
    again = shared_drift.run(*command, PYTHONPATH="elsewhere/mine/lib")
    assert ": kept " not in again.stderr
    assert "3 unchanged" in again.stdout, again.stdout


def test_what_was_imported_must_be_what_the_stack_pins(tmp_path: Path) -> None:
    """Otherwise two sides could be one version under two names, as PYTHONPATH brings it."""
    for pins in ({"jax": "0.7.1"}, {"jax": "0.8.0"}):
        shutil.copy(ROOT / "fixtures/junit/2.9.0-cpu.xml", tmp_path / ".cpu.xml")
        cell = Cell(Stack("s", "3.11", pins), "cpu", tmp_path)
        if pins["jax"] == "0.7.1":
            assert cell.finish({}, 0).results
            continue
        with pytest.raises(
            BadInputError, match=r"s cpu: not what .* jax: expected ==0\.8\.0, found"
        ):
            cell.finish({}, 0)
