"""Nights of nightly.yml itself, run here by act, on real stacks and a fork's wheels.

Four nights of two stacks, or $NIGHTS: nothing happens in two of them, the third loses a cell, which
runs again in the fourth. The next night gets a torch_xla that contains the bug of pytorch/xla#8522
again, and the last night the wheel from before. Everything is judged by the requests to GitHub, by
the published files, and by the Parquet files on the branch.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.github_api import GitHub, serve  # noqa: E402
from support.wheel import rebuilt  # noqa: E402
from support.workflows import Ran, act, clone  # noqa: E402

QUIET = int(os.environ.get("NIGHTS", "4"))
KILLED, PLANTED, FIXED = 3, QUIET + 1, QUIET + 2
NIGHTS = FIXED
CASE = "suites/spmd_specs/test_scalars_fsdpv2.py::test_scalar_parameter_shards"
FORK = "2.9.0+wheels"  # the stack 2.9.0 with the fork's wheels
GUARD = """\
  if len(partition_spec) == 0:
    return tuple(partition_spec)
"""
SHARDING = "torch_xla/experimental/spmd_fully_sharded_data_parallel.py"
SITE = "https://owner.github.io/xla-harness/"
LINK_ENVIRONMENT = """\
name: Set up
description: the environment that .ci/setup made once
inputs:
  stack: {default: ""}
  wheels: {default: ""}
runs:
  using: composite
  steps:
    - shell: bash
      run: ln -s "$ENVIRONMENT" .venv
"""


@dataclass
class Nights:
    """What is left of all nights."""

    github: GitHub
    branch: Path
    folder: Path
    ran: list[Ran] = field(default_factory=list)
    writes: dict[int, list[tuple[str, str, Any]]] = field(default_factory=dict)  # writes by night
    pages: dict[int, Path] = field(default_factory=dict)  # the folder that Pages got


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    folder = tmp_path_factory.mktemp("nightly")
    repository = clone(folder / "clone")
    _git(repository, "remote", "set-url", "origin", "https://github.com/owner/xla-harness")
    subprocess.run([repository / ".ci" / "setup", "none"], check=True)
    (repository / ".github/actions/setup/action.yml").write_text(LINK_ENVIRONMENT)
    _git(repository, "commit", "--quiet", "--all", "--message=Link the environment")
    branch = folder / "history.git"
    subprocess.run(["git", "init", "--quiet", "--bare", branch], check=True)
    wheels = {
        "good": rebuilt("torch_xla", "2.9.0+fork1", folder / "fork/1", lambda _, text: text),
        "bad": rebuilt("torch_xla", "2.9.0+fork2", folder / "fork/2", _planted),
    }
    with serve() as github, _files(folder / "fork") as server:
        done = Nights(github, branch, folder)
        for night in range(1, NIGHTS + 1):
            wheel = wheels["bad" if night == PLANTED else "good"]
            address = f"{server}/{wheel.parent.name}/{wheel.name}".replace("+", "%2B")
            with _killer(repository) if night == KILLED else contextlib.nullcontext():
                _run(done, repository, night, address)
        yield done
    command = [sys.executable, "-m", "harness", "stacks", "remove", FORK]
    subprocess.run(command, cwd=ROOT, check=False)


def _run(done: Nights, repository: Path, night: int, address: str) -> None:
    before = len(done.github.requests)
    arguments = f"{CASE.partition('::')[0]} -k {CASE.partition('::')[2]} --topology 2,4 -n 0"
    inputs = {"stacks": "2.5.1", "lanes": "cpu", "shard": "1", "arguments": arguments}
    inputs["sensitivity"] = "none"  # which takes as long as all of this
    inputs["time"] = f"2026-11-{night:02}T02:30:00Z"
    artifacts = done.folder / "artifacts"
    ran = act(
        repository,
        "workflow_dispatch",
        "nightly.yml",
        artifacts,
        [part for name, text in inputs.items() for part in ("--input", f"{name}={text}")],
        variables={
            "HISTORY_REMOTE": str(done.branch),
            "SITE": SITE,
            "NIGHTLY_WHEELS": address,
            "NIGHTLY_STACK": "2.9.0",
        },
        environment={
            "ENVIRONMENT": str(repository / ".venv"),
            "GITHUB_API_URL": done.github.address,
        },
    )
    assert ran.code == 0, f"night {night}:\n{ran.text[-6000:]}"
    causes = [path.read_text() for path in artifacts.rglob("*.died")]
    signals = ["SIGKILL" in cause for cause in causes]
    assert signals == [True] * (night == KILLED), f"night {night}:\n" + "\n".join(causes)
    done.ran.append(ran)
    done.writes[night] = [r for r in done.github.requests[before:] if r[0] != "GET"]
    done.pages[night] = done.folder / f"pages-{night}"
    shutil.copytree(artifacts / "github-pages", done.pages[night])


def _planted(name: str, text: str) -> str:
    """Remove the guard for scalars of pytorch/xla#8522."""
    if name != SHARDING:
        return text
    assert text.count(GUARD) == 1
    return text.replace(GUARD, "")


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[str]:
    """Serve the fork's wheels and yield the address."""
    handler = partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _killer(repository: Path) -> Iterator[None]:
    """Kills the pytest of the fork's cell once it has begun with its cases."""
    stop = threading.Event()
    thread = threading.Thread(target=_kill, args=(repository.parent, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _kill(folder: Path, stop: threading.Event) -> None:
    while not stop.wait(0.1):
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                inside = (process / "cwd").readlink().is_relative_to(folder)
            except OSError:
                continue
            if inside and b"--lane" in words and FORK.encode() in words[0]:
                time.sleep(2)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
                return


def _git(folder: Path, *arguments: str) -> str:
    own = ["git", "-c", "user.name=nightly", "-c", "user.email=nightly@localhost", *arguments]
    done = subprocess.run(own, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def _rows(nights: Nights, sql: str) -> list[tuple[Any, ...]]:
    """Query the branch's files without any of the project's own code."""
    work = nights.folder / "rows"
    if not work.exists():
        _git(nights.folder, "clone", "--quiet", "--branch=history", str(nights.branch), "rows")
    files = f"read_parquet('{work}/**/*.parquet', hive_partitioning = true)"
    return duckdb.execute(sql.replace("FILES", files)).fetchall()


def test_each_night_is_a_run_of_each_stack_on_the_branch(nights: Nights) -> None:
    counts = _rows(nights, "SELECT stack, count(DISTINCT run) FROM FILES GROUP BY ALL ORDER BY 1")
    assert counts == [("2.5.1", NIGHTS), (FORK, NIGHTS)]
    assert len(_git(nights.branch, "rev-list", "history").split()) == NIGHTS
    fork = f"SELECT DISTINCT torch_xla FROM FILES WHERE stack = '{FORK}' AND day(date) = "
    assert _rows(nights, f"{fork} {PLANTED - 1}") == [("2.9.0+fork1",)]
    assert _rows(nights, f"{fork} {PLANTED}") == [("2.9.0+fork2",)]


def test_nothing_is_asked_of_github_on_a_quiet_night(nights: Nights) -> None:
    noisy = {night for night, writes in nights.writes.items() if writes}
    assert noisy == {KILLED, KILLED + 1, PLANTED, FIXED}


def test_a_killed_cell_is_recorded_and_told(nights: Nights) -> None:
    lost = f"SELECT outcome, message FROM FILES WHERE stack = '{FORK}' AND day(date) = {KILLED}"
    rows = _rows(nights, lost)
    assert len(rows) == 2
    assert {outcome for outcome, _ in rows} == {"skipped"}
    assert all("not run: cell cpu 1/1" in message and "SIGKILL" in message for _, message in rows)
    other = f"SELECT count(*) FROM FILES WHERE stack = '2.5.1' AND day(date) = {KILLED}"
    assert _rows(nights, f"{other} AND outcome <> 'skipped'") == [(2,)]
    _, path, opened = next(w for w in nights.writes[KILLED] if w[1].endswith("/issues"))
    assert path == "/repos/owner/xla-harness/issues"
    assert "no longer runs" in opened["title"]
    assert "SIGKILL" in opened["body"]
    assert nights.github.issues[0]["state"] == "closed"
    assert [(m, data["state"]) for m, _, data in nights.writes[KILLED + 1] if m == "PATCH"] == [
        ("PATCH", "closed")
    ]


def test_the_planted_regression_has_one_issue_that_says_it_all(nights: Nights) -> None:
    opened = [data for m, path, data in nights.writes[PLANTED] if path.endswith("/issues")]
    assert len(opened) == 1
    title, body = opened[0]["title"], opened[0]["body"]
    assert title.startswith(f"{FORK}: {CASE}")
    assert "and 1 more" in title
    assert CASE in body
    assert FORK in body
    assert "Changed with it: **torch_xla 2.9.0+fork1 -\\> 2.9.0+fork2**." in body
    assert f"until 2026-11-{PLANTED - 1:02}" in body
    assert f"since 2026-11-{PLANTED:02}" in body
    assert "ValueError: max() arg is an empty sequence" in body
    assert "pytorch/xla/issues/8522" in body
    assert f"{SITE}case/" in body


def test_the_dashboard_names_case_stack_and_component(nights: Nights) -> None:
    site = nights.pages[PLANTED]
    front = html.unescape((site / "index.html").read_text())
    assert "test_scalar_parameter_shards" in front
    assert FORK in front
    body = next(data for m, path, data in nights.writes[PLANTED] if path.endswith("/issues"))[
        "body"
    ]
    linked = re.findall(rf"{re.escape(SITE)}(case/[\w-]+\.html)", body)
    assert len(linked) == 2
    for page in linked:
        text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", (site / page).read_text())).split())
        assert "test_scalar_parameter_shards" in text
        assert FORK in text
        assert "torch_xla 2.9.0+fork1 -> 2.9.0+fork2" in text


def test_the_night_with_the_fix_closes_it(nights: Nights) -> None:
    changes = [(path, data) for m, path, data in nights.writes[FIXED] if m == "PATCH"]
    assert [path.rpartition("/")[2] for path, _ in changes] == ["2"]
    assert changes[0][1]["state"] == "closed"
    (number, comment) = nights.github.comments[-1]
    assert number == 2
    assert "2.9.0+fork1" in comment
    assert len(nights.github.issues) == 2
    assert {issue["state"] for issue in nights.github.issues} == {"closed"}
    assert "none tonight" in (nights.pages[FIXED] / "badge.svg").read_text()


def test_every_night_went_through_every_step(nights: Nights) -> None:
    wanted = {"Plan", "Wheels", "Suites", "History", "Record", "Keep", "Dashboard", "Issues"}
    for ran in nights.ran:
        assert wanted <= set(ran.names())
