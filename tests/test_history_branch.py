"""A history on a git branch: nothing is lost or changed, whoever pushes at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import cli
from harness.errors import BadInputError
from harness.results.history_branch import Branch, _credentials


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
    for name in names:
        path = folder / f"date=2026-11-21/stack=a%2Bb/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def _files(remote: Path) -> list[str]:
    listed = _git(remote, "ls-tree", "-r", "--name-only", "history").splitlines()
    return [line.rpartition("/")[2].removesuffix(".parquet") for line in listed]


def test_what_is_pushed_is_fetched_elsewhere(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = _runs(tmp_path / "here", "one", "two"), tmp_path / "there"
    (here / "date=2026-11-21/stack=a%2Bb/.one.part").write_text("half")
    to = ["--remote", str(remote)]
    assert cli.main(["history", "push", str(here), *to]) == 0
    assert cli.main(["history", "fetch", str(there), *to]) == 0
    assert capsys.readouterr().out == "pushed=2\nruns=2\n"
    assert _files(remote) == ["one", "two"]
    assert (there / "date=2026-11-21/stack=a%2Bb/two.parquet").read_bytes() == b"two"
    assert not (there / ".git").exists()


def test_the_branch_has_no_parent_and_grows_by_a_commit(tmp_path: Path, remote: Path) -> None:
    branch = Branch(str(remote), "history")
    assert branch.fetch(tmp_path / "none") == 0
    assert branch.push(_runs(tmp_path / "here", "one")) == 1
    assert branch.push(tmp_path / "here") == 0  # nothing new: no commit
    assert branch.push(_runs(tmp_path / "other", "two")) == 1
    assert len(_git(remote, "rev-list", "history").split()) == 2
    assert _files(remote) == ["one", "two"]


def test_eight_at_once_lose_nothing(tmp_path: Path, remote: Path) -> None:
    """Each is a process of its own, and each is refused until it has the others' runs."""
    folders = [_runs(tmp_path / f"{n}", f"run-{n}") for n in range(8)]

    def push(folder: Path) -> int:
        command = [sys.executable, "-m", "harness", "history", "push", str(folder)]
        command += ["--remote", str(remote)]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(push, folders)) == {0}
    assert _files(remote) == sorted(f"run-{n}" for n in range(8))
    assert len(_git(remote, "rev-list", "history").split()) == 8


def test_a_run_never_changes(tmp_path: Path, remote: Path) -> None:
    branch = Branch(str(remote), "history")
    branch.push(_runs(tmp_path / "here", "one"))
    other = _runs(tmp_path / "other", "one")
    (other / "date=2026-11-21/stack=a%2Bb/one.parquet").write_bytes(b"forged")
    with pytest.raises(BadInputError, match="found other content"):
        branch.push(other)


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
