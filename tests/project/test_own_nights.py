"""The nightly workflow of docs/ci.md for somebody's own repository: two nights, run by act."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.github_api import GitHub, serve
from support.paths import ROOT
from support.workflows import Ran, act

from harness.history.branch import Branch
from harness.history.store import History

pytestmark = pytest.mark.long

INSTALL = '"xla-harness @ git+https://github.com/OWNER/xla-harness@COMMIT"'
FILES = {
    "pyproject.toml": '[project]\nname = "mytrain"\nversion = "1"\n',
    "mytrain/__init__.py": "def step(w, x):\n    return w + x.sum()\n",
    "tests/test_train.py": """\
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mytrain import step

def test_step():
    devices = NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d"))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), devices)
    assert float(jax.jit(step)(np.float32(1), x)) == 29
""",
    # The Python and the JAX that these tests have anyway.
    "fixtures/stacks/mine.toml": f"""\
extends = "jax-0.7.2"
python = "{sys.version_info.major}.{sys.version_info.minor}"
[pins]
jax = "0.7.1"
jaxlib = "0.7.1"
libtpu = "0.0.23"
""",
}


@dataclass(frozen=True)
class Nights:
    """What the second of two nights left, in which the project has a bug."""

    ran: list[Ran]
    github: GitHub
    branch: Path
    pages: Path


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    folder = tmp_path_factory.mktemp("nights")
    mine, branch, bin_ = folder / "mine", folder / "history.git", folder / "bin"
    for name, text in FILES.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(text)
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    (workflow,) = (text for text in texts if text.startswith("name: nights\n"))
    assert workflow.count(INSTALL) == 2
    workflow = re.sub(r"STACKS: .*", "STACKS: mine", workflow.replace(INSTALL, "xla-harness"))
    (mine / ".github/workflows").mkdir(parents=True)
    (mine / ".github/workflows/nights.yml").write_text(workflow)
    # The package is installed here: what test_package.py proves takes a minute.
    bin_.mkdir()
    (bin_ / "pip").write_text('#!/bin/sh\ntest "$*" = "install xla-harness"\n')
    (bin_ / "xla-harness").write_text(f'#!/bin/sh\nexec {sys.executable} -m harness "$@"\n')
    for tool in bin_.iterdir():
        tool.chmod(0o755)
    own = {"PATH": f"{bin_}:{os.environ['PATH']}"}
    subprocess.run([bin_ / "xla-harness", "stacks", "lock", "mine"], cwd=mine, check=True)
    subprocess.run(["git", "init", "--quiet", mine], check=True)
    remote = ["remote", "add", "origin", "https://github.com/owner/xla-harness"]
    subprocess.run(["git", *remote], cwd=mine, check=True)
    subprocess.run(["git", "init", "--quiet", "--bare", branch], check=True)
    ran = []
    with serve() as github:
        for change in ("x.sum()", "x.max()"):
            step = mine / "mytrain/__init__.py"
            step.write_text(step.read_text().replace("x.sum()", change))
            _commit(mine)
            variables = {"HISTORY_REMOTE": str(branch), "SITE": "https://me.example/mine/"}
            environment = own | {"GITHUB_API_URL": github.address}
            artifacts = folder / "artifacts"
            event = ("workflow_dispatch", "nights.yml", artifacts)
            ran.append(act(mine, *event, variables=variables, environment=environment))
            assert ran[-1].code == 0, ran[-1].text[-8000:]
        return Nights(ran, github, branch, folder / "artifacts/github-pages")


def _commit(folder: Path) -> None:
    who = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost"]
    for command in (["add", "--all"], ["commit", "--quiet", "--message=Change"]):
        subprocess.run([*who, *command], cwd=folder, check=True)


def test_every_step_ran(nights: Nights) -> None:
    steps = {"Install", "Plan", "Tests", "History", "Record", "Keep", "Dashboard", "Issues"}
    for ran in nights.ran:
        assert steps <= set(ran.names()), ran.text[-8000:]


def test_both_nights_are_on_the_branch(nights: Nights, tmp_path: Path) -> None:
    Branch(str(nights.branch), "history").fetch(tmp_path / "history")
    history = History(str(tmp_path / "history"))
    sql = 'SELECT stack, lane, "case", outcome, jax FROM cases ORDER BY run'
    rows = history.ask(lambda connection: connection.execute(sql).fetchall())
    case = ("mine", "virtual-tpu", "tests/test_train.py::test_step")
    assert rows == [(*case, "passed", "0.7.1"), (*case, "failed", "0.7.1")]


def test_the_regression_is_published_and_has_an_issue(nights: Nights) -> None:
    front = html.unescape((nights.pages / "index.html").read_text())
    assert "tests/test_train.py::test_step" in front
    (issue,) = nights.github.issues
    assert issue["title"].startswith("mine: tests/test_train.py::test_step")
    assert issue["state"] == "open"
