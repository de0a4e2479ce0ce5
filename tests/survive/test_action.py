"""The action at the repository's root, in a workflow of somebody with tests of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.commands import run_program
from support.drift import GOOD, NO_DOUBLE, wheel
from support.workflows import RUNNER, act, clone

WORKFLOW = f"""
name: theirs
on: workflow_dispatch
jobs:
  survive:
    runs-on: {RUNNER}
    steps:
      - uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8 # v5.0.0
      - uses: ./
        with:
          candidate: CANDIDATE
          requirements: drift[none]==1
          tests: theirs -p no:cacheprovider
      - name: Show
        if: always()
        run: cat "$GITHUB_STEP_SUMMARY"
"""
TESTS = "import drift\ndef test_3(): assert drift.double(3) == 6\ndef test_4(): drift.half(4)\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("candidate", "summary"),
    [("drift==2", "**1 regressed.**"), ("drift==99", "**No answer: the log of this step says why")],
)
def test_the_action_answers_in_the_summary(tmp_path: Path, candidate: str, summary: str) -> None:
    for version, code in (("1", GOOD), ("2", NO_DOUBLE)):
        wheel(tmp_path / "wheels", version, code + f"__version__ = '{version}'\n")
    theirs = clone(tmp_path / "clone")
    (theirs / "theirs").mkdir()
    (theirs / "theirs" / "test_theirs.py").write_text(TESTS)
    (theirs / "theirs" / "pytest.ini").write_text("[pytest]\n")
    text = WORKFLOW.replace("CANDIDATE", candidate)
    (theirs / ".github" / "workflows" / "theirs.yml").write_text(text)
    git = ("git", "-c", "user.name=Their", "-c", "user.email=their@example.com")
    run_program("git", "add", ".", cwd=theirs, check=True)
    run_program(*git, "commit", "--quiet", "-m", "Theirs", cwd=theirs, check=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"UV_FIND_LINKS": str(tmp_path / "wheels"), "PATH": path}
    ran = act(theirs, "workflow_dispatch", "theirs.yml", tmp_path / "artifacts", environment=given)
    assert "Show" in ran.names()
    assert "Survive" in ran.names("failure"), ran.text[-4000:]
    assert summary in ran.text, ran.text[-4000:]
