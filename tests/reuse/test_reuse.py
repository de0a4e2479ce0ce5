"""Results are reused while nothing that they depend on has changed, and only then."""

from __future__ import annotations

import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import run_program

from harness.junit import report
from harness.junit.properties import REUSED
from harness.reuse.result_store import ResultStore

FILES = {
    "pytest.ini": "[pytest]\naddopts = -p no:cacheprovider\nxla_preload = json\nmarkers = slow\n",
    "conftest.py": "",
    "library/__init__.py": "",
    "library/sums.py": "from library.numbers import ONE\ndef total(n): return n + ONE\n",
    "library/numbers.py": "ONE = 1\n",
    "library/unused.py": "",
    "library/late.py": "LATE = 1\n",
    "data/rows.txt": "1\n",
    "tests/test_sums.py": """\
import pytest
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies("2")]
from library.sums import total
def test_total(): assert total(1) == 2
def test_again(): assert total(2) == 3
""",
    "tests/test_data.py": """\
import importlib, os, pathlib
import pytest
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies("2")]
ROOT = pathlib.Path(__file__).parents[1]
ROWS = (ROOT / "data" / "rows.txt").read_text().split()
@pytest.mark.parametrize("row", ROWS)
def test_rows(row): assert int(row)
def test_listed(): assert len(list((ROOT / "data").iterdir())) > 0
def test_absent():
    try: (ROOT / "settings.json").read_text()
    except FileNotFoundError: pass
def test_forked(tmp_path):
    (ROOT / "own.txt").write_text(str(tmp_path))  # another path in each run
    child = os.fork()
    if child == 0:
        open(ROOT / "data" / "forked.txt").close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (ROOT / "own.txt").read_text()
def test_late():
    exec("import library." + "lat" + "e")
""",
    "data/forked.txt": "",
}
NEVER = """\
import os, pathlib, subprocess
import pytest
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies("2")]
def test_fails(): assert False
def test_crashes(): os.abort()
def test_skips(): pytest.skip("no")
def test_starts(): subprocess.run(["true"], check=True)
def test_passes(): pass
"""
SUMS = {"test_total", "test_again"}
DATA = {"test_rows", "test_listed", "test_absent", "test_forked", "test_late"}


@dataclass(frozen=True)
class Project:
    """A project with cases, and a store of their results."""

    folder: Path
    store: Path
    temporary: Path

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *arguments: str, **environment: str) -> tuple[str, dict[str, str]]:
        """Run all cases; return the output, and the reused run of each case by its name."""
        # In one word: pytest takes a path alone for an argument when it looks for its rootdir.
        reuse = [f"--reuse={self.store}", "--reuse-check=1000000"]
        words = [*reuse, "--junitxml=junit.xml", "-p", "no:randomly", *(arguments or ["tests"])]
        done = run_program(
            *(sys.executable, "-m", "pytest", *words),
            cwd=self.folder,
            env=os.environ
            | {"PYTHONPATH": str(self.folder), "TMPDIR": str(self.temporary)}
            | environment,
        )
        results = report.read(self.folder / "junit.xml").results.values()
        reused = {r.id.partition("::")[2].partition("[")[0]: r for r in results}
        return done.stdout, {k: r.properties.get(REUSED, "") for k, r in reused.items()}

    def ran(self, *arguments: str, **environment: str) -> set[str]:
        """Return the names of the cases that ran."""
        _, reused = self.run(*arguments, **environment)
        return {name for name, run in reused.items() if not run}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "temporary").mkdir()
    project = Project(tmp_path / "project", tmp_path / "store", tmp_path / "temporary")
    for name, text in FILES.items():
        project.write(name, text)
    return project


def test_what_executed_a_changed_file_runs_again(project: Project) -> None:
    assert project.ran() == SUMS | DATA
    assert project.ran() == set()
    project.write("library/unused.py", "changed = True\n")
    assert project.ran() <= {"test_late"}  # which imports what only running it shows
    project.write("library/numbers.py", "ONE = 2 - 1\n")  # imported by what the tests import
    assert project.ran() - {"test_late"} == SUMS
    project.write("library/late.py", "LATE = 2\n")
    assert project.ran() == {"test_late"}
    project.write("tests/test_sums.py", f"{FILES['tests/test_sums.py']}# edited\n")
    assert project.ran() == SUMS
    project.write("conftest.py", "import library.unused\n")
    assert project.ran() == SUMS | DATA
    project.write("pytest.ini", f"{FILES['pytest.ini']}\tfast\n")
    assert project.ran() == SUMS | DATA


@pytest.mark.long
def test_what_read_changed_data_runs_again(project: Project) -> None:
    project.run()
    project.write("settings.json", "{}")  # which was absent
    assert project.ran() == {"test_absent"}
    project.write("data/more.txt", "")
    assert project.ran() == {"test_listed"}
    project.write("data/forked.txt", "x")  # read in a fork
    assert project.ran() == {"test_forked"}
    project.write("data/rows.txt", "1\n2\n")  # read while the tests were imported
    assert project.ran() == SUMS | DATA


@pytest.mark.long
def test_other_circumstances_run_again(project: Project) -> None:
    project.run()
    every = SUMS | DATA
    assert project.ran(XLA_FLAGS="--xla_cpu_use_thunk_runtime=true") == every
    assert project.ran("tests", "--deadline", "30") == every
    assert project.ran("tests", "-W", "error") == every
    assert project.ran("tests", "-o", "xla_long=slow") == every
    assert project.ran("tests", "--topology", "2") == set()
    assert project.ran("tests", "-n", "2") == set()
    assert project.ran("tests", "-k", "total") == set()


def test_a_changed_package_runs_again(project: Project, tmp_path: Path) -> None:
    package = tmp_path / "elsewhere" / "package.py"
    package.parent.mkdir()
    package.write_text("A = 1\n")
    project.write("tests/test_sums.py", f"import package\n{FILES['tests/test_sums.py']}")
    path = f"{project.folder}{os.pathsep}{package.parent}"
    project.run(PYTHONPATH=path)
    assert project.ran(PYTHONPATH=path) == set()
    package.write_text("A = 2\n")
    assert project.ran(PYTHONPATH=path) == SUMS | DATA


def test_what_can_not_be_known_is_measured_each_time(project: Project) -> None:
    project.write("tests/test_never.py", NEVER)
    project.run("tests/test_never.py")
    output, reused = project.run("tests/test_never.py")
    assert {name for name, run in reused.items() if run} == {"test_passes"}
    for cause in ("failed", "crashed", "skipped", "it starts another program"):
        assert f"1 are measured each time: {cause}" in output


def test_a_wrong_reuse_is_an_error(project: Project) -> None:
    outside = project.temporary / "outside"
    outside.write_text("1")
    project.write(
        "tests/test_sums.py",
        FILES["tests/test_sums.py"] + f"def test_outside(): assert open('{outside}').read() == '1'",
    )
    project.run()
    outside.write_text("2")
    assert "test_outside" not in project.ran()  # a temporary file is not tracked
    output, reused = project.run("tests", "--reuse-check", "1")
    assert not any(reused.values())
    assert "reuse was wrong: tests/test_sums.py::test_outside" in output
    assert "outcome was passed, and is failed" in output
    (fault,) = report.read(project.folder / "junit.xml").faults
    assert "reuse was wrong" in fault
    assert "test_outside" in project.ran()  # its record is gone


def test_checks_take_ten_seconds(project: Project) -> None:
    cases = "@pytest.mark.parametrize('n', range(40))\ndef test_many(n): pass\n"
    head = "\n".join(FILES["tests/test_sums.py"].splitlines()[:2])
    project.write("tests/test_many.py", f"{head}\n{cases}")
    checked = ("tests/test_many.py", "--reuse-check=2", "--reuse-seed=7")
    project.run(*checked)
    assert "\n14 ran again to check the reuse (seed 7), and agree" in project.run(*checked)[0]
    store = ResultStore(project.store)
    for path in (project.store / "1" / "cases").glob("*/*"):
        record = store.read("cases", path.name)
        assert record
        record["reports"][0]["duration"] = 4
        store.write("cases", path.name, record)
    assert "\n3 ran again to check the reuse (seed 7), and agree" in project.run(*checked)[0]


def test_a_damaged_store_is_said(project: Project) -> None:
    project.run()
    damaged = [path for path in (project.store / "1" / "cases").rglob("*") if path.is_file()]
    damaged[0].write_bytes(damaged[0].read_bytes()[:-1])
    content = damaged[1].read_bytes()
    changed = zlib.decompress(content[64:]).replace(b"passed", b"failed")
    damaged[1].write_bytes(content[:64] + zlib.compress(changed))
    output, reused = project.run()
    assert [*reused.values()].count("") == 2
    (line,) = (line for line in output.splitlines() if " results reused, the oldest of " in line)
    assert line.startswith("5 of 7 ")
    assert line.endswith(min(filter(None, reused.values())))
    assert "2 damaged results were removed" in output
    for path in (project.store / "1" / "sets").rglob("*"):
        if path.is_file():
            path.unlink()
    assert project.ran() == SUMS | DATA


def test_a_store_that_can_not_be_written_is_said(project: Project) -> None:
    project.store.write_text("a file")
    output, reused = project.run()
    assert not any(reused.values())
    assert "results can't be kept" in output


def test_the_store_is_bounded(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    for number in range(9):
        store.write("cases", f"{number:064}", os.urandom(1000).hex())
        os.utime(tmp_path / "1" / "cases" / "00" / f"{number:064}", (number, number))
    assert store.read("cases", f"{0:064}") is not None  # used now, so it stays
    store.prune(6000)
    kept = [number for number in range(9) if store.read("cases", f"{number:064}")]
    assert kept[0] == 0
    assert kept[1:] == [*range(kept[1], 9)]
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) <= 6000


@pytest.mark.parametrize("words", [("--reuse-check", "0"), ("--isolation", "none")])
def test_bad_input(project: Project, words: tuple[str, str]) -> None:
    done = run_program(
        *(sys.executable, "-m", "pytest", f"--reuse={project.store}", *words), cwd=project.folder
    )
    assert done.returncode == 2
    assert words[0] in done.stderr + done.stdout


def test_chosen_cases_run_first(project: Project) -> None:
    (project.folder / "bad.txt").write_text("tests/test_sums.py::test_again[cpu-2]\n")
    _, usual = project.run()
    _, reused = project.run("tests", "--first=bad.txt", "--reuse-check=1")
    assert [*usual][-1] == next(iter(reused)) == "test_again"
    assert [*reused][1:] == [*usual][:-1]
