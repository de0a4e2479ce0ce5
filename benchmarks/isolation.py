"""What isolation costs: a forked child per case, beside no isolation and a fresh interpreter.

All three are measured in one run, in turns, so that a busy machine slows them alike. *Overhead* is
what a way adds to the same case run in pytest's own process, where the runtime is started once and
each case compiles a program of its own; *ratio* is a fresh interpreter's time over a fork's.
Usage: ``uv run benchmarks/isolation.py [--rounds 3] [--torch-tpu]``, where the latter asks TorchTPU
too, in the environment of the stack torch_tpu-0.2.0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from junitparser import JUnitXml, Properties

from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environments, plugin_path

STACKS = Path(__file__).parents[1] / "fixtures" / "stacks"
CASES = 20
TORCH_XLA = f"""
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


# On one chip of the virtual TPU, for either framework.
ONE_CHIP = f"""
import pytest
import torch
import {{framework}}

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(1),
    pytest.mark.frameworks("{{framework}}"),
]
DEVICE = {{{{"torch_xla": "xla", "torch_tpu": "tpu"}}}}["{{framework}}"]


@pytest.mark.parametrize("number", range({CASES}))
def test_transfer(start_runtime, number):
    start_runtime(spmd=False)
    assert torch.ones(8 + number, device=DEVICE).cpu()[0] == 1


@pytest.mark.parametrize("number", range({CASES}))
def test_sum(start_runtime, number):
    start_runtime(spmd=False)
    x = torch.ones(8 * (number + 1), 8, device=DEVICE)
    assert (x + x).sum().item() == 128 * (number + 1)
"""


@dataclass
class Side:
    """A project of cases, what runs it, and the seconds its cases took in each way."""

    title: str
    project: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    inside: dict[str, list[float]] = field(default_factory=dict)
    forked: dict[str, list[float]] = field(default_factory=dict)
    fresh: dict[str, list[float]] = field(default_factory=dict)

    def round(self, folder: Path) -> None:
        """Run all cases once in each way."""
        (folder / "test_cases.py").write_text(self.project)
        ids = self._times(folder, "--isolation=fork", self.forked)
        self._times(folder, "--isolation=none", self.inside)
        for name in self.forked:
            start = time.perf_counter()
            self._pytest(folder, "--isolation=none", f"test_cases.py::{ids[name]}")
            self.fresh.setdefault(name, []).append(time.perf_counter() - start)

    def table(self) -> str:
        """Return the medians in milliseconds, a row for each name."""
        columns = ("in process", "forked", "overhead", "fresh", "ratio")
        lines = [f"{self.title:<24}" + "".join(f"{column:>11}" for column in columns)]
        for name in self.forked:
            sides = (self.inside[name], self.forked[name], self.fresh[name])
            here, fork, new = (1e3 * statistics.median(times) for times in sides)
            numbers = "".join(f"{number:>11.1f}" for number in (here, fork, fork - here, new))
            lines.append(f"  {name:<22}{numbers}{new / fork:>10.0f}x")
        return "\n".join(lines)

    def _times(self, folder: Path, isolation: str, times: dict[str, list[float]]) -> dict[str, str]:
        """Add every case's seconds, from its JUnit record; the id of one case of each name."""
        report = folder / "report.xml"
        self._pytest(folder, isolation, f"--junitxml={report}")
        ids = {}
        for suite in JUnitXml.fromfile(str(report)):
            for case in suite:
                properties = case.child(Properties) or ()
                seconds = sum(float(p.value) for p in properties if p.name.startswith("duration_"))
                name = case.name.split("[")[0]
                times.setdefault(name, []).append(seconds)
                ids[name] = case.name
        return ids

    def _pytest(self, folder: Path, *arguments: str) -> None:
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, **self.environment}
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)


def _torch_tpu() -> Side:
    environments = Environments()
    stack = Catalogue(STACKS).find("torch_tpu-0.2.0")
    environment = environments.create(stack, lambda line: print(line, file=sys.stderr))
    return Side(
        "torch_tpu, one chip",
        ONE_CHIP.format(framework="torch_tpu"),
        str(environment.python),
        {"PYTHONPATH": str(plugin_path(environments.cache))},
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-tpu", action="store_true")
    options = parser.parse_args()
    sides = [Side("torch_xla, 4 CPU devices", TORCH_XLA)]
    if options.torch_tpu:
        sides += [
            Side("torch_xla, one chip", ONE_CHIP.format(framework="torch_xla")),
            _torch_tpu(),
        ]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr)
            for side in sides:
                side.round(Path(folder))
    print("median ms")
    for side in sides:
        print(side.table())


if __name__ == "__main__":
    main()
