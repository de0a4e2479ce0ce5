"""A side of which nothing has changed is not run again: real environments, real pytest."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.commands import run_program
from support.owner import Owner, environment

from harness.reuse.result_store import ResultStore
from harness.survive import recording_plugin
from harness.survive.side import SideProcess, SideRun
from harness.survive.side_dependencies import dependencies
from harness.survive.side_reuse import SideReuse

# Each test notes that it ran, and which drift it had.
CONFTEST = """
import os, pathlib, drift, pytest

@pytest.fixture(autouse=True)
def note(request):
    with pathlib.Path(os.environ["MARKS"], "ran").open("a") as file:
        file.write(f"{drift.__version__} {request.node.name}\\n")
"""
SUITE = """
import drift, os, pathlib, pytest, time

NEW = drift.__version__ == "2"

def test_works(): assert drift.half(4) == 2
def test_regresses(): assert drift.double(3) == 6
def test_fails(): assert False

def test_slow_once():
    path = pathlib.Path(os.environ["MARKS"], "slow")
    if NEW and not path.exists():
        path.touch()
        time.sleep(1.2)

@pytest.mark.xfail
def test_declared(): assert False
"""
VERDICTS = {
    "test_suite.py::test_regresses": "regressed",
    "test_suite.py::test_fails": "still failing",
    "test_suite.py::test_declared": "still failing",
}
ALL = ["test_declared", "test_fails", "test_regresses", "test_slow_once", "test_works"]
RERUN = ["test_regresses", "test_slow_once"]


def notes(owner: Owner) -> list[str]:
    """Return what has run since the last call, with drift's version."""
    file = owner.folder.parent / "marks" / "ran"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return sorted(lines)


def both(*names: str) -> list[str]:
    return sorted(f"{version} {name}" for version in ("1", "2") for name in names)


def test_the_second_answer(owner: Owner) -> None:
    """Only failures and times are measured again, and the answer is the same, with its time."""
    owner.write(conftest=CONFTEST, test_suite=SUITE)
    assert owner.survive("drift==2").returncode == 1
    assert (owner.verdicts, owner.answer["reused"]) == (
        VERDICTS,
        {"base": "", "candidate": ""},
    )
    assert notes(owner) == sorted([*both(*ALL), *both(*RERUN)])
    shutil.rmtree(owner.folder / "reports")
    done = owner.survive("drift==2")
    assert (done.returncode, owner.verdicts) == (1, VERDICTS)
    assert notes(owner) == sorted(
        ["1 test_fails", "2 test_fails", "2 test_regresses", *both("test_slow_once")]
    )
    assert owner.badge == ("drift 2", "1 test breaks", "red")
    for side, time in owner.answer["reused"].items():
        log = owner.folder / "reports" / "survive" / side / "run" / "log"
        assert "test_suite.py" in log.read_text()
        assert f"{side}: reused, measured at {time}." in done.stdout
        assert f"{side}: reused, measured at {time}." in (owner.folder / "answer.md").read_text()
    (loaded,) = owner.answer["loaded"]
    assert (loaded["base"]["version"], loaded["candidate"]["version"]) == ("1", "2")
    assert owner.survive("drift==0.5").returncode == 1
    assert [line for line in notes(owner) if line.startswith("1")] == [
        *("1 test_fails", "1 test_regresses")
    ]
    assert owner.answer["reused"]["base"]
    assert owner.survive("drift==2", "--fresh").returncode == 1
    assert notes(owner) == sorted([*both(*ALL), *both("test_regresses")])


@pytest.fixture
def measure(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., SideRun]:
    """Measure a side of the project in an environment of its own."""
    wheels = owner.python.parents[2] / "wheels"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "wheels").symlink_to(wheels)
    python = environment(tmp_path / "own", "pytest==9.0.2", "drift==1", "tool==1")
    monkeypatch.chdir(owner.folder)
    monkeypatch.setenv("MARKS", str(tmp_path / "marks"))
    (tmp_path / "marks").mkdir()
    owner.write(conftest=CONFTEST, test_suite="def test_a(): pass\ndef test_b(): pass")

    def run(*arguments: str, out: str = "out", limit: float = 60) -> SideRun:
        folder = owner.folder / out
        process = SideProcess("base", python, folder, arguments, print)
        depends = partial(dependencies, python, arguments, [], [folder])
        store = ResultStore(tmp_path / "store")
        return SideReuse(process, store, depends, fresh=False).run(limit)

    return run


def edit(path: Path) -> None:
    """Change a character, so that the size stays."""
    text = path.read_text()
    path.write_text(text.replace("1", "2", 1) if "1" in text else f"{text}1")


def site(owner: Owner) -> Path:
    (folder,) = (owner.folder.parent / "own").glob("env-*/lib/python3*/site-packages")
    return folder


CHANGES: dict[str, Callable[[Owner, pytest.MonkeyPatch], object]] = {
    "conftest.py": lambda owner, _: edit(owner.folder / "conftest.py"),
    "data.csv": lambda owner, _: edit(owner.folder / "data.csv"),
    "new.txt": lambda owner, _: (owner.folder / "new.txt").touch(),
    "site:tool.py": lambda owner, _: edit(site(owner) / "tool.py"),
    "site:added.pth": lambda owner, _: (site(owner) / "added.pth").write_text("# 1"),
    "the variable THEIRS": lambda _, patch: patch.setenv("THEIRS", "1"),
    "outside.py": lambda owner, _: edit(owner.folder.parent / "path" / "outside.py"),
}


@pytest.mark.parametrize("is_git", [True, False])
def test_what_a_side_depends_on(
    owner: Owner, measure: Callable[..., SideRun], monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], *, is_git: bool,
) -> None:  # fmt: skip
    outside = owner.folder.parent / "path"
    outside.mkdir()
    (outside / "outside.py").write_text("1")
    monkeypatch.setenv("PYTHONPATH", str(outside))
    (owner.folder / "data.csv").write_text("1")
    (owner.folder / "ignored.txt").write_text("1")
    (owner.folder / ".gitignore").write_text("ignored.txt\n")
    if is_git:
        run_program("git", "init", owner.folder, check=True)
        run_program("git", "add", "conftest.py", cwd=owner.folder, check=True)
    assert not measure().reused
    assert notes(owner) == ["1 test_a", "1 test_b"]
    monkeypatch.setenv("SHLVL", "7")
    (site(owner) / "__pycache__").mkdir(exist_ok=True)
    (site(owner) / "__pycache__" / "tool.pyc").touch()
    assert measure().reused
    for name, change in CHANGES.items():
        change(owner, monkeypatch)
        assert not measure().reused, name
        assert f"{name} changed since" in capfd.readouterr().out
        assert notes(owner) == ["1 test_a", "1 test_b"]
        run = measure()
        assert run.reused, name
        assert sorted(run.results) == ["test_suite.py::test_a", "test_suite.py::test_b"]
        assert notes(owner) == []
    edit(owner.folder / "ignored.txt")
    assert bool(measure().reused) == is_git
    assert not measure("-v").reused  # another argument
    assert measure("-v").reused
    assert measure().reused


def test_what_identifies_a_machine(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(owner.folder)
    digests = dependencies(Path(sys.executable), [], [], [])
    assert digests["Python"] == sys.version
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if " fpu " in line)
    assert cpu in digests["the processor"]
    monkeypatch.setattr("harness.survive.side_dependencies.ACCELERATORS", ("/dev/nul",))
    assert dependencies(Path(sys.executable), [], [], [])["the devices"] == "/dev/null"


def test_tests_outside_the_current_folder(
    owner: Owner, measure: Callable[..., SideRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says which of the current folder's files they may read."""
    (owner.folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(owner.folder.parent / "elsewhere")
    for _ in range(2):
        assert not measure(str(owner.folder / "test_suite.py")).reused


UNSTEADY = {
    "crash": "def test_a(): os._exit(0)",
    "hang": "def test_a(): time.sleep(99)",
    "interrupt": "def test_a(): pytest.exit('enough')",
    "late end": "def test_a(): atexit.register(time.sleep, 99)",
    "own file": "def test_a(): pathlib.Path('new').touch()",
    "device": "def test_a(): os.open('/dev/zero', 0)",
}


@pytest.mark.parametrize("end", UNSTEADY)
def test_what_is_never_reused(
    owner: Owner, measure: Callable[..., SideRun], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Reusing one of these would hide what another run might show."""
    owner.write(
        test_suite=f"import atexit, os, pathlib, pytest, time\n{UNSTEADY[end]}\ndef test_b(): pass"
    )
    plugin = Path(recording_plugin.__file__).read_text()
    changed = owner.folder.parent / "plugin.py"  # there is no accelerator to open here
    changed.write_text(plugin.replace('"/dev/kfd"', '"/dev/zero"'))
    monkeypatch.setattr(recording_plugin, "__file__", str(changed))
    monkeypatch.setattr("harness.survive.side._DUMP", 1.0)
    for _ in range(2):
        assert not measure(limit=4 if end in ("hang", "late end") else 60).reused
        (owner.folder / "new").unlink(missing_ok=True)
        assert "1 test_a" in notes(owner)


def test_a_failure_that_comes_and_goes(owner: Owner, measure: Callable[..., SideRun]) -> None:
    """If a stored failure does not fail again, all tests run."""
    marks = owner.folder.parent / "marks"
    owner.write(
        test_suite="""
        import os, pathlib
        def test_a(): assert pathlib.Path(os.environ["MARKS"], "works").exists()
        def test_b(): pass
        """
    )
    assert not measure().reused
    assert notes(owner) == ["1 test_a", "1 test_b"]
    assert measure().reused
    assert notes(owner) == ["1 test_a"]
    (marks / "works").touch()
    assert not measure().reused
    assert notes(owner) == ["1 test_a", "1 test_a", "1 test_b"]
    run = measure()
    assert run.reused
    assert run.results["test_suite.py::test_a"].works


def test_a_flaky_test_of_the_candidate(owner: Owner) -> None:
    """The base is reused, and the candidate is not."""
    owner.write(
        conftest=CONFTEST,
        test_suite="""
        import drift, os, pathlib
        def test_flaky():
            path = pathlib.Path(os.environ["MARKS"], drift.__version__)
            is_first = not path.exists()
            path.touch()
            assert drift.__version__ == "1" or not is_first
        """,
    )
    for _ in range(2):
        marks = owner.folder.parent / "marks"
        (marks / "2").unlink(missing_ok=True)
        assert owner.survive("drift==2", "--", "-p", "no:xdist").returncode == 0
        assert owner.verdicts == {"test_suite.py::test_flaky": "flaky"}
    assert owner.answer["reused"]["base"]
    assert not owner.answer["reused"]["candidate"]


def test_a_damaged_store_and_two_at_once(
    owner: Owner, measure: Callable[..., SideRun], tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda out: measure(out=out), ("../out-1", "../out-2")))
    assert [sorted(run.results) for run in runs] == [
        ["test_suite.py::test_a", "test_suite.py::test_b"]
    ] * 2
    assert measure().reused
    (file,) = (tmp_path / "store").rglob("sides/*/*")
    content = file.read_bytes()
    file.write_bytes(content[:-9] + b"x" + content[-8:])
    notes(owner)
    assert not measure().reused
    assert notes(owner) == ["1 test_a", "1 test_b"]
    assert measure().reused
