"""The commands that the documents show, and a process that runs many of them quickly."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.commands import run_program
from support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
_BLOCK = re.compile(r"^```sh\n(.+?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(?:uv run )?((?:xla-harness|pytest) [^`]+)`")
_UV_FLAGS = {"--group", "--no-group", "--with", "--isolated"}
# Each in a fork of a process that has imported what takes seconds. What it prints is kept apart:
# a fatal signal must not lose it.
_DRIVER = """
import json, os, sys
import jax, torch, torch_xla, pytest
from harness import cli
RUN = {"xla-harness": cli.main, "pytest": pytest.main}
for number, (program, *arguments) in enumerate(json.load(sys.stdin)):
    if not (child := os.fork()):
        log = os.open(f"{number}.log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            code = RUN[program](arguments)
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(int(code))
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""


@dataclass(frozen=True)
class Shown:
    """One command of one page, without ``uv run``."""

    page: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def in_blocks() -> list[Shown]:
    """Every command in a fenced ``sh`` block."""
    return [
        Shown(page.name, words)
        for page in PAGES
        for block in _BLOCK.findall(page.read_text())
        for line in block.replace("\\\n", " ").splitlines()
        for words in _commands(line)
    ]


def in_sentences() -> list[Shown]:
    """Every command in a sentence or a table, with placeholders."""
    return [
        Shown(page.name, tuple(text.split()))
        for page in PAGES
        for text in _INLINE.findall(page.read_text())
    ]


def _commands(line: str) -> Iterator[tuple[str, ...]]:
    words: list[str] = []
    text = re.sub(r"(^|\s)#\s.*", "", line)  # a comment; pytorch/xla#8854 has none
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&")
    lexer.whitespace_split, lexer.commenters = True, ""
    for word in [*lexer, ";"]:
        if word not in (";", "&&"):
            words.append(word)
        elif words:
            arguments = words[: words.index(">")] if ">" in words else words  # to a file
            yield tuple(_without_uv(arguments))
            words = []


def _without_uv(words: Sequence[str]) -> Sequence[str]:
    if list(words[:2]) != ["uv", "run"]:
        return words
    rest = list(words[2:])
    while rest and rest[0] in _UV_FLAGS:
        del rest[: 1 if rest[0] == "--isolated" else 2]
    return rest


def run_all(commands: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, str]]:
    """The exit code and the output of each, run in ``folder`` one after the other."""
    done = run_program(
        sys.executable,
        "-c",
        _DRIVER,
        cwd=folder,
        input=json.dumps([list(words) for words in commands]),
        timeout=900,  # they take a minute of processor time, which four other tests want, too
    )
    codes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(codes) == len(commands), done.stderr
    return [(code, (folder / f"{i}.log").read_text()) for i, code in enumerate(codes)]
