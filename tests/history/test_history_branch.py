"""A history on a git branch: nothing is lost or changed, whoever pushes at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness import cli
from harness.errors import PARTIAL, BadInputError
from harness.history.branch import Branch, Fetched, Pushed, _credentials
from harness.history.format import SCHEMA, with_checksum
from harness.history.names import place_of
from harness.history.run import RunMetadata
from harness.history.store import History


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote.git"
    folder.mkdir()
    _git(folder, "init", "--quiet", "--bare", ".")
    return folder


def _runs(folder: Path, *names: str) -> Path:
    """A folder with a run of one case, called so, for each name."""
    report = folder.with_suffix(".xml")
    for name in names:
        report.write_text(f'<testsuite><testcase name="{name}"/></testsuite>')
        History(folder).record(
            [report], RunMetadata(stack="a+b", time=datetime(2026, 11, 21, tzinfo=UTC))
        )
    return folder


def _files(remote: Path) -> list[str]:
    return _git(remote, "ls-tree", "-r", "--name-only", "history").splitlines()


def _only(folder: Path) -> Path:
    (path,) = (path for path in folder.rglob("*.parquet"))
    return path


def _cases(folder: Path) -> list[str]:
    rows = History(folder).connect().execute('SELECT "case" FROM cases ORDER BY ALL').fetchall()
    return [case for (case,) in rows]


def _on_the_branch(remote: Path, folder: Path) -> list[str]:
    """The cases of the runs that anybody gets from the branch."""
    Branch(str(remote), "history").fetch(folder)
    return _cases(folder)


def test_what_is_pushed_is_fetched_elsewhere(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = _runs(tmp_path / "here", "one", "two"), tmp_path / "there"
    (here / "date=2026-11-21/stack=a%2Bb/.one.part").write_text("half")
    to = ["--remote", str(remote)]
    assert cli.main(["ci", "history", "push", str(here), *to]) == 0
    assert cli.main(["ci", "history", "fetch", str(there), *to]) == 0
    assert capsys.readouterr().out == "pushed=2\nruns=2\n"
    assert _cases(there) == ["one", "two"]
    assert len(_files(remote)) == 2
    assert not (there / ".git").exists()


def test_the_branch_has_no_parent_and_grows_by_a_commit(tmp_path: Path, remote: Path) -> None:
    branch = Branch(str(remote), "history")
    assert branch.fetch(tmp_path / "none") == Fetched(0, ())
    assert len(branch.push(_runs(tmp_path / "here", "one")).new) == 1
    assert branch.push(tmp_path / "here") == Pushed((), (), ())  # nothing new: no commit
    assert len(branch.push(_runs(tmp_path / "other", "two")).new) == 1
    assert len(_git(remote, "rev-list", "history").split()) == 2
    assert _on_the_branch(remote, tmp_path / "there") == ["one", "two"]


def test_eight_at_once_lose_nothing(tmp_path: Path, remote: Path) -> None:
    """Each is a process of its own, and each is refused until it has the others' runs."""
    folders = [_runs(tmp_path / f"{n}", f"run-{n}") for n in range(8)]

    def push(folder: Path) -> int:
        command = [sys.executable, "-m", "harness", "ci", "history", "push", str(folder)]
        command += ["--remote", str(remote)]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(push, folders)) == {0}
    assert _on_the_branch(remote, tmp_path / "there") == sorted(f"run-{n}" for n in range(8))
    assert len(_files(remote)) == 8
    assert len(_git(remote, "rev-list", "history").split()) == 8


def test_a_run_that_another_library_wrote_is_the_same(tmp_path: Path, remote: Path) -> None:
    """Two recorders of one run whose Parquet writers differ: the first file stays, for both."""
    branch = Branch(str(remote), "history")
    here, there = _runs(tmp_path / "here", "one"), _runs(tmp_path / "there", "one")
    branch.push(here)
    path = _only(there)
    name = path.relative_to(there).as_posix()
    table = pq.ParquetFile(path).read().replace_schema_metadata(SCHEMA.metadata)
    path.unlink()
    path.write_bytes(with_checksum(table, place_of(name), compression="none"))
    assert _only(here).read_bytes() != path.read_bytes()
    before = _git(remote, "rev-parse", "history")
    assert branch.push(there) == Pushed((), (), ())
    assert branch.fetch(there) == Fetched(1, ())
    assert _git(remote, "rev-parse", "history") == before
    assert _cases(there) == ["one"]


def _damage(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    return bytes(content)


def test_a_damaged_run_is_not_pushed(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = _runs(tmp_path / "here", "one")
    path = _only(here)
    _runs(here, "two")
    _damage(path)
    assert cli.main(["ci", "history", "push", str(here), "--remote", str(remote)]) == PARTIAL
    captured = capsys.readouterr()
    assert captured.out == "pushed=1\n"
    assert f"set aside: {path.relative_to(here)}: damaged" in captured.err
    assert _on_the_branch(remote, tmp_path / "there") == ["two"]


def test_a_run_that_is_damaged_on_the_branch_is_replaced(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, to = _runs(tmp_path / "here", "one"), ["--remote", str(remote)]
    path = _only(here)
    name = path.relative_to(here).as_posix()
    whole = path.read_bytes()
    bad = _damage(path)
    _commit(remote, {name: bad})
    assert cli.main(["ci", "history", "fetch", str(tmp_path / "there"), *to]) == PARTIAL
    assert f"set aside: {name}: damaged" in capsys.readouterr().err
    assert (tmp_path / "there" / name).read_bytes() == bad  # so that who reads it names it
    path.write_bytes(whole)
    assert cli.main(["ci", "history", "fetch", str(here), *to]) == 0
    assert path.read_bytes() == whole
    capsys.readouterr()
    assert cli.main(["ci", "history", "push", str(here), *to]) == 0
    captured = capsys.readouterr()
    assert (captured.out, name in captured.err) == ("pushed=1\n", True)
    assert cli.main(["ci", "history", "fetch", str(tmp_path / "there"), *to]) == 0
    assert _cases(tmp_path / "there") == ["one"]


def test_names_that_no_recorder_gives_stay_on_the_branch(tmp_path: Path, remote: Path) -> None:
    """Also one that is no UTF-8; what is no Parquet file is nobody's."""
    bad: list[str | bytes] = [
        "date=2026-99-01/stack=x/a.parquet",
        b"date=2026-11-21/stack=\xff/a.parquet",
    ]
    _commit(remote, dict.fromkeys([*bad, "README.md"], b"x"))
    Branch(str(remote), "history").push(_runs(tmp_path / "here", "one"))
    fetched = Branch(str(remote), "history").fetch(tmp_path / "there")
    assert (fetched.runs, len(fetched.set_aside)) == (1, 2)
    assert _cases(tmp_path / "there") == ["one"]
    assert not (tmp_path / "there/README.md").exists()


def _commit(remote: Path, files: dict[str | bytes, bytes]) -> None:
    """The first commit of the branch, with these files."""
    lines = b""
    for name, content in files.items():
        command = ["git", "hash-object", "-w", "--stdin"]
        blob = subprocess.run(command, cwd=remote, input=content, capture_output=True, check=True)
        lines += b"100644 " + blob.stdout.strip() + b"\t" + os.fsencode(name) + b"\0"
    command = ["git", "update-index", "-z", "--index-info"]
    subprocess.run(command, cwd=remote, input=lines, check=True)
    commit = _git(remote, "commit-tree", _git(remote, "write-tree"), "-m", "x")
    _git(remote, "update-ref", "refs/heads/history", commit)


def test_a_remote_that_refuses_is_named(tmp_path: Path, remote: Path) -> None:
    hook = remote / "hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho protected >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(BadInputError, match="protected"):
        Branch(str(remote), "history").push(_runs(tmp_path / "here", "one"))


@pytest.mark.parametrize(("remote_", "branch"), [("--upload-pack=x", "history"), ("x", "-f")])
def test_an_option_is_no_remote(remote_: str, branch: str) -> None:
    with pytest.raises(BadInputError, match="expected a remote"):
        Branch(remote_, branch)


def test_a_remote_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nowhere"):
        Branch(str(tmp_path / "nowhere"), "history").fetch(tmp_path / "here")


def test_the_token_goes_to_its_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "GITHUB_TOKEN", "secret")
    monkeypatch.setitem(os.environ, "GITHUB_SERVER_URL", "https://github.com")
    assert "GIT_CONFIG_VALUE_0" in _credentials("https://github.com/owner/name")
    for other in ("https://github.com.evil.org/owner", "http://github.com/o/n", "/a/path"):
        assert _credentials(other) == {}
