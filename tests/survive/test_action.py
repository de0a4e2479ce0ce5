"""The action at the repository's root, and the workflow around it, for somebody with own tests."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from support.commands import run_program
from support.drift import GOOD, NO_DOUBLE, wheel
from support.github_api import serve
from support.paths import ROOT
from support.workflows import RUNNER, Ran, act, clone

ACTION = f"""
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
CALL = """
name: theirs
on: pull_request
jobs:
  survive:
    permissions: {contents: read, pull-requests: write}
    uses: ./.github/workflows/survive.yml
    with:
      candidate: CANDIDATE
      base: drift[none]==1
      requirements: pytest
      tests: theirs -p no:cacheprovider
      name: drift
      repository: owner/xla-harness
      ref: main
"""
TESTS = "import drift\ndef test_3(): assert drift.double(3) == 6\ndef test_4(): drift.half(4)\n"
NO_ANSWER = "**No answer about drift==99: the log of the step Survive says why.**"
PULL_REQUEST = {"pull_request": {"number": 7, "head": {"ref": "theirs"}, "base": {"ref": "main"}}}
TOKEN = "token-of-a-test"
WORKFLOW = Path(".github", "workflows", "theirs.yml")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A repository with two tests, and two wheels beside it."""
    for version, code in (("1", GOOD), ("2", NO_DOUBLE)):
        wheel(tmp_path / "wheels", version, code + f"__version__ = '{version}'\n")
    folder = clone(tmp_path / "clone")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "test_theirs.py").write_text(TESTS)
    (folder / "theirs" / "pytest.ini").write_text("[pytest]\n")
    return folder


def run(theirs: Path, event: str, workflow: str, *options: str, **variables: str) -> Ran:
    """Commit the workflow and let act run it."""
    (theirs / WORKFLOW).write_text(workflow)
    git = ("git", "-c", "user.name=Their", "-c", "user.email=their@example.com")
    run_program("git", "add", ".", cwd=theirs, check=True)
    run_program(*git, "commit", "--quiet", "-m", "Theirs", cwd=theirs, check=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"UV_FIND_LINKS": str(theirs.parent / "wheels"), "PATH": path} | variables
    artifacts = theirs.parent / "artifacts"
    return act(theirs, event, WORKFLOW.name, artifacts, options, environment=given)


@pytest.mark.long
@pytest.mark.parametrize(
    ("candidate", "summary"), [("drift==2", "**1 regressed.**"), ("drift==99", NO_ANSWER)]
)
def test_the_action_answers_in_the_summary(theirs: Path, candidate: str, summary: str) -> None:
    ran = run(theirs, "workflow_dispatch", ACTION.replace("CANDIDATE", candidate))
    assert "Show" in ran.names()
    assert "Survive" in ran.names("failure"), ran.text[-4000:]
    assert summary in ran.text, ran.text[-4000:]


@pytest.mark.long
def test_the_workflow_keeps_one_comment_and_the_reports(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps(PULL_REQUEST))
    options = ("--eventpath", str(tmp_path / "event.json"), "--secret", f"GITHUB_TOKEN={TOKEN}")
    reports = tmp_path / "artifacts" / "drift"
    no_base = CALL.replace("CANDIDATE", "drift==99").replace("none]==1", "none]==77")
    with serve() as github:
        own = {"GITHUB_API_URL": github.address, "GITHUB_REPOSITORY": github.repository}

        def called(workflow: str) -> Ran:
            ran = run(theirs, "pull_request", workflow, *options, **own)
            assert "Survive" in ran.names("failure"), ran.text[-4000:]
            assert "Comment" in ran.names(), ran.text[-4000:]
            return ran

        def badge() -> tuple[str, str]:
            data = json.loads((reports / "badge.json").read_text())
            return data["label"], data["message"]

        called(CALL.replace("CANDIDATE", "drift==2"))
        ((number, body),) = github.comments
        assert number == 7
        assert "**1 regressed.**" in body
        assert "test_theirs.py::test_3" in body
        assert f"[Log and reports](https://github.com/{github.repository}/actions/runs/" in body
        assert badge() == ("drift 2", "1 test breaks")
        answer = json.loads((reports / "answer.json").read_text())
        assert answer["counts"] == {"regressed": 1, "unchanged": 1}
        assert (reports / "candidate" / "run" / "log").exists()
        called(no_base)
        ((number, body),) = github.comments
        assert number == 7
        assert NO_ANSWER in body
        assert badge() == ("drift 99", "no answer")
        github.refusals, github.refused = [(403, {})], ("PATCH", "POST")
        assert "the token may not write" in called(f"{no_base}# from a fork\n").text
        assert github.comments == [(number, body)]
        assert github.tokens == {f"Bearer {TOKEN}"}


def test_the_badge_is_published_as_the_page_shows(tmp_path: Path) -> None:
    """Again and again, and nothing but the badge."""
    texts = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/survive.md").read_text(), re.DOTALL)
    (publish,) = yaml.safe_load(texts[0])["jobs"]["badge"]["steps"][1:]
    remote = tmp_path / "project.git"
    run_program("git", "init", "--bare", remote, check=True)
    environment = os.environ | {
        "GITHUB_TOKEN": TOKEN,
        "GITHUB_REPOSITORY": "owner/project",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://x-access-token:{TOKEN}@github.com/owner/project",
    }
    for text in ("works", "2 tests break"):
        folder = tmp_path / text / publish["working-directory"]
        folder.mkdir(parents=True)
        (folder / "badge.json").write_text(text)
        (folder / "answer.md").write_text("not published")
        run_program("bash", "-e", "-c", publish["run"], cwd=folder, env=environment, check=True)
        listed = run_program("git", "ls-tree", "-r", "--name-only", "badges", cwd=remote)
        assert listed.stdout == "badge.json\n"
        assert run_program("git", "show", "badges:badge.json", cwd=remote).stdout == text
