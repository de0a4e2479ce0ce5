"""One issue a regression: opened, updated, closed, reopened, never twice; over real HTTP."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.github_api import MOST_BODY, GitHub, serve
from support.junit_text import case, report

from harness import cli
from harness.history.store import History
from harness.issues.github import LABEL

TOKEN = "token-of-a-test"
MEANT = {"expected failure": "failed", "unexpected pass": "passed"}
Night = Callable[..., None]


@pytest.fixture
def github() -> Iterator[GitHub]:
    with serve() as server:
        yield server


class Nights:
    """A history to which nights are added, and the command."""

    def __init__(self, folder: Path, github: GitHub) -> None:
        self.folder, self.github, self.number = folder, github, 0
        self.processes = False

    def add(self, cases: dict[str, str], xla: str = "2.9.0", message: str = "sums differ") -> None:
        """A night: the outcome of each case by name."""
        self.number += 1
        broken = {"failure": f"AssertionError: {message}", "layer": "numbers"}
        texts = [
            case(
                name,
                outcome,
                id=f"suites/a/test_a.py::{name}",
                actual=MEANT.get(outcome, outcome),
                upstream="pytorch/xla#8522",
                **(broken if outcome in ("failed", "crashed") else {}),
            )
            for name, outcome in cases.items()
        ]
        facts = {"stack": "nightly", "torch_xla": xla, "python": "3.11"}
        time = f"2026-11-{self.number:02}T02:30:00+00:00"
        path = report(self.folder / f"{self.number}.xml", *texts, time=time, **facts)
        History(self.folder / "history").record([path])

    def sync(self, *arguments: str, code: int = 0) -> str:
        """The command; what it says."""
        command = ["ci", "issues", "sync", "--repo", "owner/xla-harness"]
        command += ["--history", str(self.folder / "history"), *arguments]
        own = {"GITHUB_API_URL": self.github.address, "GITHUB_TOKEN": TOKEN}
        if self.processes:
            done = xla_harness(*command, env=os.environ | own)
            output, returned = done.stdout + done.stderr, done.returncode
        else:
            text = io.StringIO()
            with (
                pytest.MonkeyPatch.context() as patch,
                redirect_stdout(text),
                redirect_stderr(text),
            ):
                for name, value in own.items():
                    patch.setenv(name, value)
                returned = cli.main(command)
            output = text.getvalue()
        assert returned == code, output
        return output

    def changes(self) -> list[tuple[str, str]]:
        """What a sync writes: method and the end of the path."""
        before = len(self.github.requests)
        self.sync()
        prefix = f"/repos/{self.github.repository}/"
        new = [r for r in self.github.requests[before:] if r[0] != "GET"]
        return [(method, path.removeprefix(prefix)) for method, path, _ in new]


@pytest.fixture
def nights(tmp_path: Path, github: GitHub) -> Nights:
    return Nights(tmp_path, github)


GOOD = {"test_x": "passed", "test_y": "passed", "test_z": "passed"}
BAD = GOOD | {"test_x": "failed", "test_y": "failed"}


@pytest.mark.long
def test_a_regression_from_its_first_night_to_its_return(nights: Nights, github: GitHub) -> None:
    nights.processes = True
    nights.add(GOOD)
    assert nights.changes() == []
    nights.add(BAD, "2.10.0")
    assert nights.changes() == [("POST", "labels"), ("POST", "issues")]
    issue = github.issues[0]
    assert issue["title"] == "nightly: suites/a/test_a.py::test_x fails (and 1 more)"
    assert "torch_xla 2.9.0 -&gt; 2.10.0" in issue["body"].replace("-\\>", "-&gt;").replace(
        "\\", ""
    )
    case = "suites/a/test_a.py::test_x"
    assert f"xla-harness matrix --stacks nightly --lanes cpu -- {case}\n" in issue["body"]
    assert "xla-harness repro" not in issue["body"]  # its id names no lane
    assert f"bisect {case} --wheels WHEELS --base nightly" in issue["body"]
    assert "--good 2.9.0 --bad 2.10.0\n" in issue["body"]
    nights.add(BAD, "2.10.0")
    assert nights.changes() == []  # the same as yesterday is no news
    nights.add(GOOD | {"test_x": "failed"}, "2.10.0")
    assert nights.changes() == [("PATCH", "issues/1"), ("POST", "issues/1/comments")]
    assert github.comments[-1] == (1, "Now 1 case fewer.")
    for _ in range(8):  # past the week in which it would be called flaky
        nights.add(GOOD, "2.11.0")
    assert nights.changes() == [("PATCH", "issues/1"), ("POST", "issues/1/comments")]
    assert issue["state"] == "closed"
    assert (
        "torch\\_xla 2.11.0" in github.comments[-1][1]
        or "torch_xla 2.11.0" in github.comments[-1][1]
    )
    assert nights.changes() == []
    nights.add(BAD, "2.12.0")
    assert nights.changes() == [("PATCH", "issues/1"), ("POST", "issues/1/comments")]
    assert issue["state"] == "open"
    assert len(github.issues) == 1
    assert {f"Bearer {TOKEN}"} == github.tokens


def test_two_causes_are_two_issues_and_a_changed_message_is_none(
    nights: Nights, github: GitHub
) -> None:
    nights.add(GOOD)
    nights.add(GOOD | {"test_x": "failed"})
    nights.sync()
    nights.add(GOOD | {"test_x": "failed", "test_z": "failed"}, message="other text")
    nights.sync()
    assert len(github.issues) == 1, "the new cause is the changed one: it has its case"
    nights.add(GOOD | {"test_x": "failed", "test_y": "failed"}, message="a third")
    nights.sync()
    assert len(github.issues) == 1


def test_a_case_that_stops_running_is_a_regression(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add({"test_x": "passed", "test_y": "skipped"})
    nights.sync()
    titles = [issue["title"] for issue in github.issues]
    assert titles == ["nightly: suites/a/test_a.py::test_y no longer runs (and 1 more)"]
    nights.add({"test_x": "passed", "test_y": "skipped"})
    assert nights.changes() == []
    nights.add(GOOD)
    nights.sync()
    assert github.issues[0]["state"] == "closed"


def test_what_is_lost_again_is_one_issue_and_what_breaks_then_another(
    nights: Nights, github: GitHub
) -> None:
    lost = {"test_x": "passed", "test_y": "skipped", "test_z": "skipped"}
    for cases, message in ((GOOD, ""), (lost, ""), (GOOD, ""), (lost, ""), (GOOD, ""), (BAD, "a")):
        nights.add(cases, message=message)
        nights.sync()
    assert [issue["state"] for issue in github.issues] == ["closed", "open"]
    assert [text for _, text in github.comments if text.startswith("It is back")] == [
        "It is back: 2 cases."
    ]
    for cases in [GOOD] * 8:
        nights.add(cases)
    nights.sync()
    nights.add(BAD, message="quite another failure")
    nights.sync()
    assert [issue["state"] for issue in github.issues] == ["closed", "closed", "open"]


def test_what_a_person_closed_stays_closed_until_it_is_news(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    github.issues[0]["state"] = "closed"
    assert nights.changes() == []
    nights.add(GOOD | dict.fromkeys(GOOD, "failed"))
    nights.sync()  # one case more
    assert github.issues[0]["state"] == "open"
    github.issues[0]["state"] = "closed"
    for _ in range(8):
        nights.add(GOOD)
    assert nights.changes() == [("PATCH", "issues/1")]  # noted, without a word
    nights.add(BAD)
    nights.sync()
    assert github.issues[0]["state"] == "open"


def test_what_nobody_measured_since_is_not_called_fixed(
    nights: Nights, github: GitHub, tmp_path: Path
) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    other = Nights(tmp_path / "other", github)
    other.folder.mkdir()
    other.add({"test_x": "passed"})  # test_y is in no run of this history
    assert other.changes() == []
    assert github.issues[0]["state"] == "open"


def test_an_edited_body_and_a_strangers_issue(nights: Nights, github: GitHub) -> None:
    """A person may write into the body; a marker without our label counts for nothing."""
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    ours = github.issues[0]
    ours["body"] = ours["body"].replace("\n", "\r\n").replace("Cases:", "Seen by us too. Cases:")
    stranger = github.add("a copy", ours["body"])
    assert nights.changes() == []
    for _ in range(8):
        nights.add(GOOD)
    nights.sync()
    assert (ours["state"], stranger["state"]) == ("closed", "open")


def test_every_page_is_read(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    for number in range(7):
        github.add(f"other {number}", "by hand", "xla-regression")
    github.page_size = 2
    assert nights.changes() == []
    assert len([r for r in github.requests if "page=4" in r[1]]) == 1


def test_a_next_page_elsewhere_gets_no_token(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    github.add("other", "by hand", "xla-regression")
    github.page_size, github.elsewhere = 1, "http://127.0.0.2:9"
    assert "its next page is elsewhere" in nights.sync(code=2)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "1"},
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()))},
    ],
)
def test_a_rate_limit_is_waited_for(
    nights: Nights, github: GitHub, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    github.refusals = [(403, headers), (429, headers)]
    waits: list[float] = []
    sleep, own = time.sleep, threading.current_thread()

    def wait(seconds: float) -> None:
        """Other tests may have left threads that wait too."""
        if threading.current_thread() is own:
            waits.append(seconds)
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", wait)
    nights.sync()
    assert waits == [1, 1]
    assert len(github.issues) == 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {}),
        (403, {"Retry-After": "86400"}),
        (500, {}),
        (301, {"Location": "http://127.0.0.2:9/"}),
    ],
)
def test_other_refusals_end_the_command(
    nights: Nights, github: GitHub, status: int, headers: dict[str, str]
) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    github.refusals = [(status, headers)]
    assert str(status) in nights.sync(code=2)
    assert github.issues == []


def test_a_case_that_never_worked_is_no_regression(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD | {"test_old": "expected failure"})
    nights.add(GOOD | {"test_old": "failed", "test_new": "failed"})
    nights.sync()
    assert github.writes() == []


@pytest.mark.long
def test_thousands_of_cases_are_one_issue_of_a_size(nights: Nights, github: GitHub) -> None:
    many = {f"test_{'long' * 60}_{number}": "passed" for number in range(6000)}
    nights.add(many)
    nights.add(dict.fromkeys(many, "failed"))
    nights.sync()
    (issue,) = github.issues
    assert len(issue["body"]) <= MOST_BODY
    assert "(and 5999 more)" in issue["title"]
    assert nights.changes() == []


def test_the_site_of_pages(nights: Nights, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert "GITHUB_REPOSITORY" in nights.sync("--site", "pages", code=2)
    monkeypatch.setenv("GITHUB_REPOSITORY", "Owner/xla-harness")
    nights.sync("--site", "pages")
    assert "](https://owner.github.io/xla-harness/case/test_x-" in github.issues[0]["body"]


def test_dry_run_writes_nothing(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add(BAD)
    assert "open    #? nightly: suites/a/test_a.py::test_x fails" in nights.sync("--dry-run")
    assert github.writes() == []


def test_no_more_than_most_are_opened_at_once(nights: Nights, github: GitHub) -> None:
    nights.add(GOOD)
    nights.add({"test_x": "failed", "test_y": "crashed"})
    assert "1 left" in nights.sync("--most", "1")
    assert len(github.issues) == 1
    nights.sync("--most", "1")
    assert len(github.issues) == 2


MARKERS = {
    "lines of a number": '{"key": "k", "lines": 5, "kind": "broken", "left": "open"}',
    "lines of numbers": '{"key": "k", "lines": [5], "kind": "broken", "left": "open"}',
    "a key of a list": '{"key": [], "lines": [], "kind": "broken", "left": "open"}',
    "deep": '{"key": ' + "[" * 20_000 + "}",
}


@pytest.mark.parametrize("kind", MARKERS)
def test_a_marker_that_is_not_ours(nights: Nights, github: GitHub, kind: str) -> None:
    body = f"x\n\n<!-- xla-harness regression {MARKERS[kind]} -->\n"
    issue = github.add("by a stranger", body, LABEL)
    nights.add(GOOD)
    nights.add(BAD)
    nights.sync()
    assert issue["body"] == body
    assert len(github.issues) == 2


ISSUE = {"number": 1, "state": "open", "title": "x", "body": None}
ANSWERS = {
    "cut off": (b'[{"number": 1, "sta', {"Content-Length": "5000"}),
    "cut off at its end": (b'[{"number": 1, "sta', {}),
    "no JSON": (b"<html>", {}),
    "deep": (b"[" * 100_000, {}),
    "an object": (b'{"message": "x"}', {}),
    "texts": (b'["x"]', {}),
    "nothing": (b"null", {}),
    "no number": (json.dumps([ISSUE | {"number": "1"}]).encode(), {}),
    "no title": (json.dumps([ISSUE | {"title": None}]).encode(), {}),
    "no state": (b'[{"number": 1, "title": "x", "body": ""}]', {}),
    "a next page for ever": (json.dumps([ISSUE]).encode(), {"Link": '<ADDRESS>; rel="next"'}),
    "a next page nowhere": (json.dumps([ISSUE]).encode(), {"Link": '<http://[x>; rel="next"'}),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_that_is_none(nights: Nights, github: GitHub, kind: str) -> None:
    nights.add(GOOD)
    github.raw = ANSWERS[kind]
    output = nights.sync(code=2)
    assert f"{github.address}" in output
    assert github.writes() == []


@pytest.mark.parametrize("token", ["a\nb", "\u00e9", "\udcff"])
def test_a_token_that_is_none_is_not_shown(
    nights: Nights, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.add(GOOD)
    monkeypatch.setattr(sys.modules[__name__], "TOKEN", f"secret{token}")
    output = nights.sync(code=2)
    assert "GITHUB_TOKEN: expected" in output
    assert "secret" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repo", "nothing"], "expected OWNER/NAME"),
        (["--repo", "../.."], "expected OWNER/NAME"),
        (["--site", "x:y"], "--site"),
    ],
)
def test_bad_input(nights: Nights, arguments: list[str], message: str) -> None:
    nights.add(GOOD)
    assert message in nights.sync(*arguments, code=2)
