"""One damaged file on the history's branch stops neither a night nor a pull request."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from support.commands import run_program
from support.github_api import serve
from support.paths import ROOT

from harness.history.branch import Branch
from harness.history.run import RunMetadata
from harness.history.store import History

UV = '#!/bin/sh\nshift 3  # run --no-sync xla-harness\nexec "{python}" -m harness "$@"\n'


def step(workflow: str, name: str) -> str:
    """Return the command of the step that has the name, in whatever job it is."""
    jobs = yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())["jobs"]
    steps = (each for job in jobs.values() for each in job.get("steps", ()))
    (command,) = (each["run"] for each in steps if each.get("name") == name)
    return str(command)


def record(folder: Path, day: int, outcome: str = "") -> None:
    report = folder.with_suffix(".xml")
    case = f'<testcase classname="test_a" name="test_b">{outcome}</testcase>'
    report.write_text(f"<testsuite>{case}</testsuite>")
    History(folder).record(
        [report], RunMetadata(stack="a", time=datetime(2026, 11, day, tzinfo=UTC))
    )


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A branch with two good runs, and one with a flipped bit between them."""
    folder, bare, work = tmp_path / "all", tmp_path / "history.git", tmp_path / "work"
    for day in (20, 21, 22):
        record(folder, day)
    subprocess.run(["git", "init", "--quiet", "--bare", bare], check=True)
    assert len(Branch(str(bare), "history").push(folder).new) == 3
    subprocess.run(["git", "clone", "--quiet", "--branch=history", bare, work], check=True)
    (path,) = (path for path in work.rglob("*.parquet") if "2026-11-21" in str(path))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    own = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*own, "commit", "--quiet", "--all", "--message=Damage"], cwd=work, check=True)
    subprocess.run([*own, "push", "--quiet"], cwd=work, check=True)
    shutil.rmtree(work)
    return bare


@pytest.mark.long
def test_a_night_publishes_the_rest(tmp_path: Path, remote: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/uv").write_text(UV.format(python=sys.executable))
    (tmp_path / "bin/uv").chmod(0o755)
    output = tmp_path / "output"
    with serve() as github:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "REMOTE": str(remote),
            "SITE": "https://owner.github.io/name/",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_REPOSITORY": github.repository,
            "GITHUB_API_URL": github.address,
            "GITHUB_TOKEN": "t",
        }

        def run(workflow: str, name: str) -> str:
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
            done = run_program(*command, step(workflow, name), cwd=tmp_path, env=environment)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stderr

        fetched = run("nightly.yml", "History")
        record(tmp_path / "reports/history", 23, '<failure message="E: x"/>')
        outputs = [fetched, *(run("nightly.yml", name) for name in ("Keep", "Dashboard", "Issues"))]
        shutil.rmtree(tmp_path / "reports/history")
        outputs.append(run("ci.yml", "Last recorded run"))
    for text in outputs:
        assert "set aside: " in text
        assert "2026-11-21" in text
    assert "::warning title=damaged%3A date=2026-11-21" in fetched
    assert output.read_text() == "runs=4\n"
    site = (tmp_path / "reports/site/index.html").read_text()
    assert "1 file of the history left out" in site
    assert len(github.issues) == 1  # of the regression
    assert len(Branch(str(remote), "history").fetch(tmp_path / "after").set_aside) == 1
