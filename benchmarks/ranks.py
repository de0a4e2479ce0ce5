"""What a job of several processes costs beside one process that has all devices, and its limits.

All sides are measured in one run, in turns. *program* is a program of about 1 ms over four devices
(a matmul on each, and a sum over all), its result awaited: on four devices of one process, and on
four ranks with one each. *exchange* is a program whose argument is 64 MiB a rank and whose result
is its neighbour's. *ready* is the time until 16 forked ranks have a client and have come to the
first program, and *memory* what one of four ranks has for itself then, in pages that it shares with
nobody. Usage: ``uv run benchmarks/ranks.py [--rounds 3]``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from recorded import recorded

PROJECT = """
import time

import jax
import numpy as np
import pytest
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from harness.job.ranks import run_ranks

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

pytestmark = pytest.mark.lanes("virtual-tpu")


def over_all(part, rows, columns):
    mesh = Mesh(np.array(jax.devices()), "x")
    sharding = NamedSharding(mesh, P("x"))
    value = np.ones((rows, columns), np.float32)
    shape = (rows * len(jax.devices()), columns)
    x = jax.make_array_from_callback(shape, sharding, lambda index: value)
    return jax.jit(shard_map(part, mesh=mesh, in_specs=P("x"), out_specs=P("x"))), x


def seconds(program, x, count):
    jax.block_until_ready(program(x))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        jax.block_until_ready(program(x))
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2]


def program(number=0):
    return seconds(*over_all(lambda x: x @ x + lax.psum(x[:1], "x"), 288, 288), 200)


def exchange(number=0):
    ring = [(n, (n + 1) % 4) for n in range(4)]
    return seconds(*over_all(lambda x: lax.ppermute(x, "x", ring), 4096, 4096), 6)


def ready(number):
    multihost_utils.sync_global_devices("ready")
    return time.monotonic()


def memory(number):
    multihost_utils.sync_global_devices("ready")
    with open("/proc/self/smaps_rollup") as file:
        private = [int(line.split()[1]) for line in file if line.startswith("Private")]
    multihost_utils.sync_global_devices("read")
    return sum(private) / 1024


def both(topology, measured, record_property):
    name = measured.__name__
    if topology.processes:
        record_property(f"{name} ranks", max(run_ranks(measured, topology)))
    else:
        record_property(f"{name} devices", measured())


@pytest.mark.topologies("4", "4@chip")
def test_program(topology, record_property):
    both(topology, program, record_property)


@pytest.mark.topologies("4", "4@chip")
def test_exchange(topology, record_property):
    both(topology, exchange, record_property)


@pytest.mark.topologies("16@chip")
def test_ready(topology, record_property):
    start = time.monotonic()
    record_property("ready ranks", max(run_ranks(ready, topology)) - start)


@pytest.mark.topologies("4@chip")
def test_memory(topology, record_property):
    record_property("memory ranks", max(run_ranks(memory, topology)))
"""
GIGABYTES = 4 * 64 * 2**20 / 1e9  # that the exchange moves


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_cases.py").write_text(PROJECT)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
            for name, value in _round(folder).items():
                measured.setdefault(name, []).append(value)
    of = {name: statistics.median(values) for name, values in measured.items()}
    rows = (
        ("program, ms", 1e3 * of["program devices"], 1e3 * of["program ranks"], "+1 at most"),
        (
            "exchange, GB/s",
            GIGABYTES / of["exchange devices"],
            GIGABYTES / of["exchange ranks"],
            "2 at least",
        ),
        ("16 ranks ready, s", None, of["ready ranks"], "2 at most"),
        ("memory of a rank, MiB", None, of["memory ranks"], "150 at most"),
    )
    print(f"{'':<24}{'one process':>13}{'ranks':>9}   limit")
    for name, alone, ranks, limit in rows:
        print(f"{name:<24}{'' if alone is None else f'{alone:.2f}':>13}{ranks:>9.2f}   {limit}")


def _round(folder: str) -> dict[str, float]:
    properties = recorded(folder, "--lane=virtual-tpu")
    return {
        name: float(value) for name, value in properties if name.endswith((" devices", " ranks"))
    }


if __name__ == "__main__":
    main()
