"""Whatever a command is given, it ends with a clear error and exit code 2, or does its work.

Exit code 1 is a verdict, 70 a bug: no input may look like the one or cause the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.junit_text import case, suite
from support.paths import ROOT

from harness import cli
from harness.history import store
from harness.history.store import History

GOOD_REPORT = suite(case("x"), stack="2.9.0")
STACK = 'python = "3.11"\n[pins]\ntorch = "2.9.0"\n'
# What a file may be, for each command that reads it.
FILES = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "nul": b"\0" * 1000,
    "nested.toml": b"x = " + b"[" * 100_000,
    "nested.json": b"[" * 100_000,
    "digits.toml": b"x = " + b"9" * 10_000,
    "nan.json": b'{"cpu": {"x": NaN}}',
    "words.json": b'{"cpu": ["x"], "tpu": {"y": "z"}}',
    "number.json": b'{"cpu": {"x": 1' + b"0" * 400 + b"}}",
    "prose": b"These are not the data that you are looking for.\n",
}
BAD = [*FILES, "folder", "loop", "x" * 300, "prose/below", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of file, a history, and what a project has."""
    made = tmp_path_factory.mktemp("hostile")
    for name, content in FILES.items():
        if content is not None:
            (made / name).write_bytes(content)
    (made / "folder").mkdir()
    (made / "loop").symlink_to("loop")
    (made / "good.xml").write_text(GOOD_REPORT)
    (made / "stacks").mkdir()
    (made / "stacks" / "2.9.0.toml").write_text(STACK)
    (made / "expected").mkdir()
    (made / "test_a.py").write_text("def test_x(): pass\n")
    History(made / "history").record([made / "good.xml"])
    return made


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XLA_HARNESS_CACHE", str(folder / "cache"))


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err, captured.err
    return code, captured.err


# FILE stands for each of BAD.
READ = {
    "durations": ["ci", "durations", "FILE", "--out", "out.json"],
    "expectations": ["known", "update", "FILE", "--expectations", "expected"],
    "expectations folder": ["known", "update", "good.xml", "--expectations", "FILE"],
    "stack file": ["stacks", "--folder", "stacks", "show", "FILE.toml"],
    "stack": ["stacks", "--folder", "stacks", "lock", "FILE"],
    "stacks folder": ["stacks", "--folder", "FILE", "list"],
    "since": ["since", "a/b#1", "--reports", "FILE"],
    "repro": ["repro", "FILE::test_x"],
    "reduce": ["reduce", "FILE.mlir"],
    "list": ["ci", "list", "FILE"],
    "verdict": ["verdict", "latest", "--history", "FILE"],
    "query": ["ci", "query", "SELECT 1", "--history", "FILE"],
    "issues": ["ci", "issues", "sync", "--history", "FILE", "--repo", "a/b", "--dry-run"],
    "wheels": ["ci", "wheels", "FILE", "--out", "wheels"],
    "matrix": ["matrix", "--stacks", "FILE", "--folder", "stacks"],
    "bisect": ["bisect", "FILE::x", "--good", "2.9.0", "--bad", "FILE", "--folder", "stacks"],
    "plan": ["ci", "plan", "--folder", "stacks", "night", "--stacks", "FILE"],
    "qualify": ["qualify", "FILE", "good.xml", "--folder", "stacks"],
    "qualify allow": ["qualify", "good.xml", "good.xml", "--allow", "FILE"],
    "merge": ["ci", "jobset", "merge", "FILE", "--out", "out.xml"],
}


@pytest.mark.parametrize("name", READ)
def test_a_file_that_can_not_be_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for file in BAD:
        arguments = [text.replace("FILE", file) for text in READ[name]]
        code, errors = run(arguments, capsys)
        assert code in (0, 2), (arguments, errors)
        assert code == 0 or errors.strip(), arguments
    assert not Path("out.json").exists()


# Each is refused; what the message says.
REFUSED = {
    "no statement": (["ci", "query", "", "--history", "history"], "SQL: expected a statement"),
    "only a sign": (["ci", "query", ";", "--history", "history"], "SQL: expected a statement"),
    "no SQL": (["ci", "query", "SELEC 1", "--history", "history"], "SQL: Parser Error"),
    "a markdown file nowhere": (
        ["verdict", "latest", "--history", "history", "--markdown", "missing/x.md"],
        "--markdown: 'missing/x.md': expected a file in a folder that exists",
    ),
    "JSON nowhere": (
        ["qualify", "good.xml", "good.xml", "--json", "missing/x"],
        "--json: 'missing/x': expected a file in a folder that exists",
    ),
    "JSON into a folder": (
        ["qualify", "good.xml", "good.xml", "--json", "folder"],
        "--json: 'folder': expected a file, found a folder",
    ),
    "durations nowhere": (["ci", "durations", "good.xml", "--out", "no/x"], "--out: 'no/x'"),
    "a script nowhere": (["repro", "test_a.py::test_x", "--out", "missing/x"], "--out"),
    "a site in a file": (
        ["dashboard", "--history", "history", "--out", "prose/site"],
        "--out: 'prose/site': expected a folder, prose is a file",
    ),
    "a million nights": (
        ["dashboard", "--history", "history", "--out", "site", "--nights", "1000000"],
        "--nights: '1000000': expected a number from 1 to 36,500",
    ),
    "no night": (
        ["dashboard", "--history", "history", "--out", "site", "--nights", "0"],
        "--nights: '0': expected a number from 1 to 36,500",
    ),
    "digits": (["ci", "wheels", "x", "--out", "w", "--back", "9" * 5000], "--back: '999"),
    "no number": (["ci", "wheels", "x", "--out", "w", "--back", "NaN"], "--back: 'NaN'"),
    "other digits": (["ci", "wheels", "x", "--out", "w", "--back", "\u0663"], "--back"),
    "a day before all": (
        ["ci", "wheels", "http://x/a-1-py3-none-any.whl", "--out", "w", "--date", "0001-01-02"],
        "7 days before 0001-01-02",
    ),
    "no address": (["ci", "wheels", "http://[x/a-1-py3-none-any.whl", "--out", "w"], "the addr"),
    "a machine of bytes": (
        ["record", "good.xml", "--history", "new", "--machine", "\udcff"],
        "--machine: '\\udcff': expected text in UTF-8",
    ),
    "bytes in a word": (["ci", "list", "--json", "\udc80"], "'\\udc80': expected text in UTF-8"),
    "bytes for pytest": (["matrix", "--stacks", "x", "--", "\udcff"], "expected text in UTF-8"),
    "a swap that is no wheel": (
        ["stacks", "--folder", "stacks", "show", "2.9.0+torch=foo.whl"],
        "key 'pins.torch'",
    ),
    "a swap of Python": (
        ["stacks", "--folder", "stacks", "show", "2.9.0+python=snake"],
        "python='snake': expected",
    ),
    "a shard of too many": (
        ["ci", "plan", "--folder", "stacks", "cells", "--stack", "2.9.0", "--lanes", "cpu",
         "--shard", "99999999999"],
        "expected NUMBER/COUNT",
    ),
    "a topology of digits": (
        ["ci", "jobset", "--accelerator", "tpu-v6e-slice", "--grid", "9" * 5000, "--image", "x"],
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_input_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = REFUSED[name]
    code, errors = run(arguments, capsys)
    assert code == 2, errors
    assert message in errors
    assert not Path("new").exists()


STACK_FILES = {
    "a list": ("extends = ['2.9.0']", "key 'extends': ['2.9.0']: expected the name of a stack"),
    "a number": ("extends = 2.9", "key 'extends': 2.9: expected the name of a stack"),
    "itself": ("extends = 'odd.toml'", "'odd.toml' extends this one"),
    "nested": ("x = " + "[" * 9999, "odd.toml: expected TOML: nested too deeply"),
    "disk": (f"{STACK}[x]\n".replace("[pins]", "disk = 'a'\n[pins]").replace("[x]", ""), "'disk'"),
    "endless disk": (STACK.replace("[pins]", "disk = nan\n[pins]"), "key 'disk': nan"),
    "wheel": (STACK.replace("2.9.0", "a.whl"), "key 'pins.torch'"),
}


@pytest.mark.parametrize("kind", STACK_FILES)
def test_a_stack_file(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = STACK_FILES[kind]
    (folder / "odd.toml").write_text(text)
    code, errors = run(["stacks", "--folder", "stacks", "show", "odd.toml"], capsys)
    assert code == 2
    assert message in errors


def command(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "harness", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(line, env=env, check=False, stdout=stdout, stderr=subprocess.PIPE)


def test_a_bug_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("::error::\x1b[2J")

    monkeypatch.setattr(store, "History", broken)
    assert cli.main(["verdict", "latest", "--history", "history"]) == os.EX_SOFTWARE
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.endswith("xla-harness: this is a bug in xla-harness, please report it\n")
    assert all(line.isprintable() for line in errors.splitlines())


def test_output_that_nobody_reads() -> None:
    question = ["ci", "query", "SELECT * FROM range(100000)", "--history", "history"]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *question],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_output_onto_a_full_disk() -> None:
    with Path("/dev/full").open("wb") as full:
        done = command("ci", "query", "SELECT 1", "--history", "history", stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == b"xla-harness: [Errno 28] No space left on device\n"


def test_a_link_is_written_through(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As /dev/stdout is one, which must never be replaced by a file."""
    (folder / "link").symlink_to("target")
    assert run(["ci", "durations", "good.xml", "--out", "link"], capsys)[0] == 0
    assert (folder / "link").is_symlink()
    assert json.loads((folder / "target").read_text()) == {"cpu": {"a.py::x": 1.0}}


def test_a_pipe_is_written_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert run(["ci", "durations", "good.xml", "--out", "pipe"], capsys)[0] == 0
    assert (folder / "pipe").is_fifo()
    assert json.loads(os.read(reader, 1000)) == {"cpu": {"a.py::x": 1.0}}
    os.close(reader)
