"""A real pytest run inside a test: a folder of its own, a process of its own, a JUnit report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from junitparser.xunit2 import JUnitXml, TestCase

HEADER = """\
import ctypes, os, resource, signal, subprocess, sys, threading, time, unittest, warnings
from pathlib import Path
import pytest
"""
# What no inner test needs and takes longer to load than it runs.
FASTER = ("-p", "no:cov", "-p", "no:hypothesispytest")
# PYTHONUNBUFFERED would hide what is lost in C's buffers. The last is tests/conftest.py's.
OURS = ("PYTEST_", "PYTHONUNBUFFERED", "PJRT_SELECT_DEFAULT_DEVICE")
INI = "[pytest]\naddopts = --strict-markers\nxla_preload ={preload}\n"


@dataclass(frozen=True)
class Ran:
    """An inner pytest run that is over."""

    code: int
    stdout: str
    stderr: str
    junit: Path

    @cached_property
    def cases(self) -> dict[str, TestCase]:
        """The report's test cases by name, without the target: ``test_x`` for test_x[cpu-4]."""
        suites = JUnitXml.fromfile(str(self.junit))
        # junitparser declares a suite's cases as their base class, which has no properties().
        cases = (case for suite in suites for case in cast("Iterable[TestCase]", suite))
        return {case.name.replace("[cpu-4]", ""): case for case in cases}

    @property
    def junit_names(self) -> list[str]:
        """The names of the report's test cases as they stand there."""
        return [case.name for suite in JUnitXml.fromfile(str(self.junit)) for case in suite]

    def properties(self, name: str) -> dict[str, str]:
        """A case's properties."""
        return {entry.name: entry.value for entry in self.cases[name].properties()}

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome that each case's properties state; "" for a test that is no case."""
        return {name: self.properties(name).get("outcome", "") for name in self.cases}

    def shows(self, text: str) -> bool:
        """Whether the output has ``text``, however its lines were wrapped."""
        return " ".join(text.split()) in " ".join((self.stdout + self.stderr).split())


@dataclass(frozen=True)
class Project:
    """A folder with tests of its own, which a pytest of its own runs."""

    path: Path
    preload: str = ""
    limit: float = 300  # seconds

    def write(self, name: str, body: str) -> Path:
        """Write a file; a test module gets the usual imports."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        head = HEADER if file.suffix == ".py" else ""
        file.write_text(head + textwrap.dedent(body), encoding="utf-8")
        return file

    def start(self, *args: str, **environment: str) -> subprocess.Popen[str]:
        """Start pytest with ``args``, as the leader of a session of its own."""
        ini = self.path / "pytest.ini"
        if not ini.exists():
            ini.write_text(INI.format(preload=self.preload), encoding="utf-8")
        clean = {name: os.environ[name] for name in os.environ if not name.startswith(OURS)}
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "--junitxml=junit.xml", *FASTER, *args],
            cwd=self.path,
            env=clean | {"COLUMNS": "80"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, typed: str = "", **environment: str) -> Ran:
        """Run pytest with ``args`` to its end; ``typed`` is what stands on its input.

        The limit is for a run that hangs: on a loaded machine, a job of several processes that
        each import torch_xla takes two minutes.
        """
        with self.start(*args, **environment) as process:
            try:
                stdout, stderr = process.communicate(typed, timeout=self.limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return Ran(process.returncode, stdout, stderr, self.path / "junit.xml")
