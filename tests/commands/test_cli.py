"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from harness.model.versions import COMPONENTS

BODY = """\
import pytest
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1")]
@pytest.mark.topologies(2, 4)
def test_x(): pass
@pytest.mark.upstream("pytorch/xla#2")
def test_y(): pass
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    area = tmp_path / "suites" / "sums"
    area.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (area / "__init__.py").write_text('"""Sums are right.\n\nThe oracle is NumPy.\n"""\n')
    (area / "test_inner.py").write_text(BODY)
    return tmp_path


def test_list(suites: Path) -> None:
    done = command(suites, "ci", "list")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "sums: 3 cases",
        "  Sums are right.",
        "  lanes       cpu",
        "  topologies  2 4",
        "  upstream    pytorch/xla#1 pytorch/xla#2",
        "3 cases in all",
    ]
    assert "collecting suites" in done.stderr


@pytest.mark.parametrize("body", ["1 / 0", "@pytest.mark.lanes('npu')\ndef test_x(): pass"])
def test_list_of_what_cannot_be_collected(suites: Path, body: str) -> None:
    (suites / "suites" / "test_bad.py").write_text(f"import pytest\n{body}\n")
    done = command(suites, "ci", "list", "suites/test_bad.py")
    assert done.returncode == 2
    assert "suites/test_bad.py can't be collected" in done.stderr
    assert ("ZeroDivisionError" in done.stderr) != ("lane 'npu'" in done.stderr)
    assert "Traceback" not in done.stderr


def test_version_names_the_stack(tmp_path: Path) -> None:
    text = command(tmp_path, "--version").stdout
    for component in COMPONENTS:
        with contextlib.suppress(PackageNotFoundError):
            assert f" {component} {version(component)}" in text
    assert "not installed" not in text


@pytest.mark.parametrize(
    ("typo", "hint"),
    [
        ("bisekt", "xla-harness: command 'bisekt': did you mean bisect"),
        ("lsit", "xla-harness: command 'lsit': did you mean ci list"),
        ("xyz", "xla-harness: command 'xyz': expected one of known, stacks, run"),
        ("stacks lst", "argument ACTION: 'lst': did you mean list?"),
        ("stacks xyz", "argument ACTION: 'xyz': expected one of list, show, lock"),
        ("since --jsn x#1", "unrecognized arguments: --jsn: did you mean --json"),
    ],
)
def test_typos(tmp_path: Path, typo: str, hint: str) -> None:
    done = command(tmp_path, *typo.split())
    assert done.returncode == 2
    assert hint in done.stderr


def test_an_interrupt_is_no_bug(tmp_path: Path) -> None:
    """Ctrl-C before a command has anything to say: here while it reads a report."""
    report = tmp_path / "report.xml"
    os.mkfifo(report)
    line = [sys.executable, "-m", "harness", "record", str(report), "--history", "history"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with report.open("w"):  # it has opened the other end
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "xla-harness: interrupted\n")
