"""One comment on a pull request, whatever the number of runs; over real HTTP."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import xla_harness
from support.github_api import GitHub, serve

WRITES = ("POST", "PATCH")


@pytest.fixture
def github() -> Iterator[GitHub]:
    with serve() as server:
        yield server


def comment(
    github: GitHub, folder: Path, text: str, *words: str, number: int = 7
) -> subprocess.CompletedProcess[str]:
    (folder / "answer.md").write_text(text)
    command = ("ci", "comment", "answer.md", "--repo", "owner/xla-harness", "--pull-request")
    own = {"GITHUB_API_URL": github.address, "GITHUB_TOKEN": "token-of-a-test"}
    return xla_harness(*command, number, *words, cwd=folder, env=os.environ | own)


def texts(github: GitHub) -> list[tuple[int, str]]:
    """The comments, each with its pull request, without the marker."""
    return [(number, body.partition("-->\n")[2] or body) for number, body in github.comments]


def test_one_comment_is_updated(github: GitHub, tmp_path: Path) -> None:
    github.page_size = 2
    github.comments = [(7, "first"), (7, "second"), (8, "elsewhere"), (7, "third")]
    others = list(github.comments)
    for text in ("**1 regressed.**", "**Nothing broke.**", "**2 regressed.**"):
        done = comment(github, tmp_path, text)
        assert done.returncode == 0, done.stderr
        assert texts(github) == [*others, (7, text)]
    assert done.stdout == "pull request 7: comment updated\n"
    assert github.tokens == {"Bearer token-of-a-test"}
    comment(github, tmp_path, "of 8", number=8)
    assert texts(github) == [*others, (7, "**2 regressed.**"), (8, "of 8")]


def test_names_stay_apart(github: GitHub, tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("jax 0.12", "--> <!-- xla"):
            comment(github, tmp_path, f"about {name}", "--name", name)
    assert texts(github) == [(7, "about jax 0.12"), (7, "about --> <!-- xla")]


def test_a_marker_that_a_person_copied_is_not_ours(github: GitHub, tmp_path: Path) -> None:
    comment(github, tmp_path, "ours")
    (number, body), github.persons = github.comments[0], {1}
    comment(github, tmp_path, "new")
    assert github.comments[0] == (number, body)
    assert texts(github)[1:] == [(7, "new")]


def test_a_quoted_comment_is_not_ours(github: GitHub, tmp_path: Path) -> None:
    comment(github, tmp_path, "ours")
    github.comments[0] = (7, f"> {github.comments[0][1]}")
    comment(github, tmp_path, "new")
    assert len(github.comments) == 2


@pytest.mark.parametrize("earlier", [False, True])
def test_a_token_that_may_only_read(github: GitHub, tmp_path: Path, *, earlier: bool) -> None:
    if earlier:
        comment(github, tmp_path, "before")
    before = list(github.comments)
    github.refusals, github.refused = [(403, {"X-RateLimit-Remaining": "59"})], WRITES
    done = comment(github, tmp_path, "now")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("::notice title=no comment::the token may not write")
    assert github.comments == before


def test_a_rate_limit_is_no_refusal(github: GitHub, tmp_path: Path) -> None:
    github.refusals, github.refused = [(403, {"Retry-After": "0"})] * 2, WRITES
    done = comment(github, tmp_path, "text")
    assert done.returncode == 0, done.stderr
    assert texts(github) == [(7, "text")]
    assert len(github.writes()) == 3


def test_a_long_text_is_cut(github: GitHub, tmp_path: Path) -> None:
    done = comment(github, tmp_path, "é" * 100_000)
    assert done.returncode == 0, done.stderr
    assert set(texts(github)[0][1]) == {"é"}


@pytest.mark.parametrize(
    ("status", "message"), [(404, "404 Not Found"), (500, "500 Internal Server Error")]
)
def test_other_errors_are_errors(github: GitHub, tmp_path: Path, status: int, message: str) -> None:
    github.refusals = [(status, {})]
    done = comment(github, tmp_path, "text")
    assert done.returncode == 2
    assert message in done.stderr
    assert github.comments == []
