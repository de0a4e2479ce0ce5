"""A project whose stacks differ in one small package, built here: wheels, stacks, a suite."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from harness.matrix.home import RESULTS

SUITE = """\
import time
import pytest
import drift
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(1), pytest.mark.upstream("a/b#1")]
@pytest.mark.parametrize("n", [1, 2, 3])
def test_double(n):
    assert drift.double(n) == 2 * n
def test_half():
    assert drift.half(4) == 2
def test_steady():
    time.sleep(drift.SECONDS)
def test_new():
    if not hasattr(drift, "new"):
        pytest.skip("drift has no new()")
"""
# The harness brings hypothesis along, for suites; here nothing uses what takes a second to load.
INI = "[pytest]\naddopts = -p no:hypothesispytest\nxla_preload =\njunit_family = xunit2\n"
GOOD = "def double(n): return 2 * n\ndef half(n): return n // 2\nSECONDS = 0\n"
NO_DOUBLE = GOOD.replace("2 * n", "n * n")
NO_HALF = GOOD.replace("n // 2", "n // 0")
WITH_NEW = GOOD + "def new(): pass\n"


def wheel(  # noqa: PLR0913 - what a wheel's name and metadata say
    folder: Path, version: str, code: str, name: str = "drift", tag: str = "py3", *, needs: str = ""
) -> Path:
    """A wheel with one module; ``needs`` is what it requires, as ``other==1``."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + f"Requires-Dist: {needs}\n" * bool(needs),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}-none-any\n",
    }
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in files.items())
    path = folder / f"{name}-{version}-{tag}-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True)
class Drift:
    """The project's folder, with a cache of its own for environments."""

    path: Path
    cache: Path

    def stack(self, name: str, code: str = "", **keys: str) -> Path:
        """Add a stack, and the wheel that it pins if there is code for it."""
        if code:
            wheel(self.path / "wheels", name, code)
        if "extends" not in keys:  # a module of a few lines, on whatever disk there is
            keys = {"disk": "0.1", **keys}
        text = "".join(f"{key} = {value}\n" for key, value in keys.items() if key != "pins")
        pins = keys.get("pins", f'drift = "{name}"')
        file = self.path / "fixtures" / "stacks" / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        head = "" if "extends" in keys else f'python = "{_PYTHON}"\n'
        file.write_text(f'{head}{text}[pins]\n{pins}\n[wheels]\nfolder = "../../wheels"\n')
        return file

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``xla-harness`` with these arguments."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "XLA_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=self.path,
            env=clean
            | {"XLA_HARNESS_CACHE": str(self.cache), "COLUMNS": "80", "UV_COMPILE_BYTECODE": "0"}
            | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        with self.start(*arguments, **environment) as process:
            output, errors = process.communicate(timeout=200)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def interrupt(self, file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it, with Ctrl-C once it has made the file."""
        with self.start(*arguments) as process:
            end = time.monotonic() + 100
            while not (self.path / file).exists() and time.monotonic() < end:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=200)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def project(path: Path, cache: Path) -> Drift:
    """The project with its suite and without stacks, and no results to reuse."""
    shutil.rmtree(cache / RESULTS, ignore_errors=True)
    (path / "suites" / "area").mkdir(parents=True)
    (path / "reports").mkdir()  # what commands write there is no data of the project
    (path / "suites" / "area" / "__init__.py").write_text('"""Drift is right."""\n')
    (path / "suites" / "area" / "test_drift.py").write_text(SUITE)
    (path / "pytest.ini").write_text(INI)
    return Drift(path, cache)
