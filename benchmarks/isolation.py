"""What isolation costs: a forked child per case, beside no isolation and a fresh interpreter.

All three are measured in one run, in turns, so that a busy machine slows them alike. *Overhead* is
what a way adds to the same case run in pytest's own process, where the runtime is started once and
each case compiles a program of its own; *ratio* is a fresh interpreter's time over a fork's.
Usage: ``uv run benchmarks/isolation.py [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from junitparser import JUnitXml, Properties

CASES = 20
NAMES = ("test_trivial", "test_transfer", "test_sharded_sum")
PROJECT = f"""
import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(4)]


@pytest.mark.parametrize("number", range({CASES}))
def test_trivial(number):
    pass


@pytest.mark.parametrize("number", range({CASES}))
def test_transfer(start_runtime, number):
    start_runtime(spmd=True)
    assert torch.ones(8 + number, device="xla").cpu()[0] == 1


@pytest.mark.parametrize("number", range({CASES}))
def test_sharded_sum(start_runtime, number):
    start_runtime(spmd=True)
    n = 8 * (number + 1)
    x = torch.ones(n, 8, device="xla")
    xs.mark_sharding(x, xs.Mesh(np.arange(4), (4, 1), ("x", "y")), ("x", None))
    assert (x + x).sum().item() == 16 * n
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    forked: dict[str, list[float]] = {}
    inside: dict[str, list[float]] = {}
    fresh: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_cases.py").write_text(PROJECT)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
            _add(forked, _times(folder, "--isolation=fork"))
            _add(inside, _times(folder, "--isolation=none"))
            for name in NAMES:
                fresh.setdefault(name, []).append(_fresh_interpreter(folder, name))
    columns = ("in process", "forked", "overhead", "fresh", "ratio")
    print(f"{'median ms':<18}" + "".join(f"{column:>11}" for column in columns))
    for name in NAMES:
        here, fork, new = (1e3 * statistics.median(side[name]) for side in (inside, forked, fresh))
        numbers = "".join(f"{number:>11.1f}" for number in (here, fork, fork - here, new))
        print(f"{name:<18}{numbers}{new / fork:>10.0f}x")


def _times(folder: str, isolation: str) -> dict[str, list[float]]:
    """Wall seconds of every case, from the properties of its JUnit record."""
    report = Path(folder) / "report.xml"
    _pytest(folder, isolation, f"--junitxml={report}")
    times: dict[str, list[float]] = {}
    for suite in JUnitXml.fromfile(str(report)):
        for case in suite:
            properties = case.child(Properties) or ()
            seconds = sum(float(p.value) for p in properties if p.name.startswith("duration_"))
            times.setdefault(case.name.split("[")[0], []).append(seconds)
    return times


def _fresh_interpreter(folder: str, name: str) -> float:
    start = time.perf_counter()
    _pytest(folder, "--isolation=none", f"test_cases.py::{name}[cpu-4-0]")
    return time.perf_counter() - start


def _pytest(folder: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _add(total: dict[str, list[float]], new: dict[str, list[float]]) -> None:
    for name, times in new.items():
        total.setdefault(name, []).extend(times)


if __name__ == "__main__":
    main()
