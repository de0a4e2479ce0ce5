"""What the virtual TPU costs: its start and a matmul beside ``PJRT_DEVICE=CPU``, and interception.

All sides are measured in one run, in turns. *start* is the first ``torch_xla.device()`` of a case's
process; *matmul* one execution through torch_xla, its result awaited. *interception* is one
execution through PJRT's C API on the plugin, beside the same on the plugin's own backend without
it, of a matmul that takes about 1 ms. Usage: ``uv run benchmarks/virtual_tpu.py [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.export
from recorded import recorded

from harness.lanes.virtual import library
from harness.lanes.virtual.library import backend_path
from harness.model.topology import Topology
from harness.platforms.tpu import TPU

PROJECT = """
import statistics
import time

import pytest
import torch
import torch_xla

both = pytest.mark.lanes("cpu", "virtual-tpu")


def milliseconds(run):
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


@both
@pytest.mark.topologies(4)
@pytest.mark.parametrize("number", range(10))
def test_start(number, xla_target, record_property):
    record_property(f"start {xla_target.lane}", milliseconds(torch_xla.device))


@both
@pytest.mark.topologies(1)
def test_matmul(start_runtime, xla_target, record_property):
    start_runtime(spmd=False)
    x = torch.randn(384, 384, device="xla")
    torch_xla.sync()

    def run():
        y = x @ x
        torch_xla.sync(wait=True)

    times = [milliseconds(run) for _ in range(400)][100:]
    record_property(f"matmul {xla_target.lane}", statistics.median(times))
"""
PAIRS = {
    "client start": ("start cpu", "start virtual-tpu"),
    "matmul, torch_xla": ("matmul cpu", "matmul virtual-tpu"),
    "interception": ("interception bare", "interception plugin"),
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_cases.py").write_text(PROJECT)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
            _torch_xla(folder, times)
            _interception(folder, times)
    print(f"{'ms':<20}{'without':>10}{'virtual TPU':>13}{'ratio':>8}")
    for name, (without, on) in PAIRS.items():
        before, after = statistics.mean(times[without]), statistics.mean(times[on])
        print(f"{name:<20}{before:>10.3f}{after:>13.3f}{after / before:>8.2f}")


def _torch_xla(folder: str, times: dict[str, list[float]]) -> None:
    for name, value in recorded(folder, "--lane=cpu,virtual-tpu"):
        if name in sum(PAIRS.values(), ()):
            times.setdefault(name, []).append(float(value))


def _interception(folder: str, times: dict[str, list[float]]) -> None:
    """Time a program in C that has loaded both plugins, compiling and executing."""
    program, binary = Path(folder) / "matmul.mlirbc", Path(folder) / "interception"
    if not binary.exists():
        source = Path(__file__).with_name("interception.c")
        include = f"-I{backend_path().parent}/include"
        command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", include, str(source)]
        subprocess.run([*command, "-o", str(binary), "-ldl"], check=True)
        square = jax.export.export(jax.jit(lambda x: x @ x), platforms=["cpu"])
        program.write_bytes(
            square(jax.ShapeDtypeStruct((448, 448), "float32")).mlir_module_serialized
        )
    wanted = library.environment(Topology(1, 1), TPU).items()
    environment = {name: value for name, value in wanted if value is not None}
    environment["XLA_HARNESS_EVENTS"] = str(Path(folder) / "events.jsonl")
    sides = dict(zip(PAIRS["interception"], (backend_path(), library.PLUGIN), strict=True))
    for names in (list(sides), list(reversed(sides))):  # the first client is a little slower
        command = [str(binary), *(str(sides[name]) for name in names), str(program)]
        done = subprocess.run(
            command, check=True, env=os.environ | environment, stdout=subprocess.PIPE, text=True
        )
        for name, median in zip(names, done.stdout.split(), strict=True):
            times.setdefault(name, []).append(1e-3 * float(median))


if __name__ == "__main__":
    main()
