"""Whichever write fails, it costs the case that made it, and what could not be written is named.

A sample is run here; XLA_HARNESS_FAILING_WRITES=all fails each write of the run in turn.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import failing_calls
from support.project import Project, Ran

EVERY = os.environ.get("XLA_HARNESS_FAILING_WRITES") == "all"
SAMPLE = 4
CASES = """
import jax
import jax.numpy as jnp
from harness.job.ranks import run_ranks

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(2)]

def add(number=0):
    assert jnp.ones(4).sum() == 4

@pytest.mark.topologies("2@chip")
def test_ranks(topology):
    run_ranks(add, topology, deadline=60)

def test_own_file(tmp_path):
    add()
    (tmp_path / "own").write_text("text")

def test_cache(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    add()

def test_command():
    add()
    subprocess.run([sys.executable, "-c", "import jax; jax.numpy.ones(4).sum()"], check=True)

def test_output():
    add()
    print("x" * 100_000)
    raise AssertionError("as declared")
"""
NAMES = {"test_ranks", "test_own_file", "test_cache", "test_command", "test_output"}
FULL = "No space left on device"
END = 1 << 30
LAYOUT = struct.Struct("4q4096s")


@dataclass(frozen=True)
class Failing:
    """A run in which the writes from ``nth`` to ``last`` failed, of so many ``calls``."""

    ran: Ran
    calls: int
    path: str  # of the first that failed
    is_one: bool  # nothing else failed


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return failing_calls(tmp_path_factory.mktemp("failing"))


def run(folder: Path, library: Path, nth: int = 0, last: int = 0) -> Failing:
    project = Project(folder / f"{nth}-{last}", preload="jax")
    project.path.mkdir()
    temporary = project.path / "temporary"
    temporary.mkdir()
    project.write("test_inner.py", CASES)
    shared = project.path / "shared"
    shared.write_bytes(LAYOUT.pack(0, nth, last, errno.ENOSPC, b""))
    ran = project.run(
        "-rA", LD_PRELOAD=str(library), FAILING_CALLS=str(shared), TMPDIR=str(temporary)
    )
    calls, *_, path = LAYOUT.unpack(shared.read_bytes())
    assert not any(temporary.glob("xla-harness*")), "left behind"
    return Failing(ran, calls, path.rstrip(b"\0").decode(), is_one=nth == last)


def check(failing: Failing) -> None:
    """A case has failed, for what it could not write, or the run says what it could not write."""
    ran, shown = failing.ran, failing.ran.stdout + failing.ran.stderr
    assert "INTERNALERROR" not in shown, shown
    if not ran.junit.exists():
        assert ran.code == 2, shown
        paths = [failing.path] if failing.is_one else [failing.path, ran.junit]
        assert any(ran.shows(f"xla-harness: {path}: can't be") for path in paths), shown
        assert FULL in shown, shown
        return
    outcomes = ran.outcomes
    if outcomes.keys() <= {"test_inner"}:  # not even collected
        assert ran.code == 2, shown
        assert FULL in shown, shown
        return
    assert {name.partition("[")[0] for name in outcomes} == NAMES, shown
    for name, outcome in outcomes.items():
        if outcome != "passed":
            failure = ran.properties(name)["failure"]
            assert FULL in failure or "as declared" in failure, (name, failure)
    hit = [n for n, outcome in outcomes.items() if outcome != "passed"]
    assert len(hit) <= 2 or not failing.is_one, shown
    assert ran.code == 1, shown


@pytest.mark.long
def test_each_write(tmp_path: Path, library: Path) -> None:
    """One write fails, or all from one on, as on a disk that stays full."""
    control = run(tmp_path, library)
    passed = {n for n, outcome in control.ran.outcomes.items() if outcome == "passed"}
    assert len(passed) == len(NAMES) - 1, control.ran.stdout
    step = 1 if EVERY else max(1, control.calls // SAMPLE)
    wrong = {}
    for nth in range(1, control.calls + 1, step):
        # Without its first two, for standard output, pytest itself does not start.
        onwards = nth > 2 and (EVERY or nth + 2 * step > control.calls)
        for last in (nth, END) if onwards else (nth,):
            failing = run(tmp_path, library, nth, last)
            if not failing.path:  # fewer are made where Python has compiled all modules
                continue
            try:
                check(failing)
            except AssertionError as error:
                wrong[nth, last, re.sub(r"\d{2,}", "N", failing.path)] = str(error)
    assert not wrong, "\n".join(f"{which}: {why}" for which, why in wrong.items())


def test_a_log_file_that_takes_no_more(tmp_path: Path) -> None:
    """pytest drops the lines of ``--log-file`` that can't be written, without a word."""
    project = Project(tmp_path)
    project.write(
        "test_inner.py",
        "import logging\ndef test_logs(): logging.warning('x')\ndef test_not(): pass",
    )
    ran = project.run("--lane=cpu", "--log-file=/dev/full")
    assert ran.outcomes == {"test_logs": "failed", "test_not": "passed"}, ran.stdout
    assert FULL in ran.properties("test_logs")["failure"]
    assert "/dev/full" in ran.properties("test_logs")["failure"]
