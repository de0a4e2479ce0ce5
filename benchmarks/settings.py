"""What the settings that the harness chooses save cases in processor time.

Runs the same files of the suites on the virtual TPU with the harness's settings, then with each of
them as XLA and OpenMP would have it, in turns, and compares the processor time.
Usage: ``uv run benchmarks/settings.py [pytest arguments]``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

FILES = (
    "suites/multislice_flash_attention/test_flash_attention.py",
    "suites/process_groups/test_training.py",
    "suites/spmd_specs/test_scalars_fsdpv2.py",
)
SETTINGS = {
    "the harness's settings": {},
    "LLVM optimizes": {"XLA_FLAGS": "--xla_backend_optimization_level=3"},
    "fusions are emitted with MLIR": {"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"},
    "many modules of LLVM": {"XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=32"},
    "OpenMP's threads wait in a loop": {"GOMP_SPINCOUNT": "300000"},  # what libgomp does by itself
}
TURNS = 2


def main() -> None:
    """Measure and print."""
    given = sys.argv[1:] or FILES
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--lane=virtual-tpu", *given]
    wall, processor = dict.fromkeys(SETTINGS, 0.0), dict.fromkeys(SETTINGS, 0.0)
    for _ in range(TURNS):
        for name, variables in SETTINGS.items():
            start, before = time.perf_counter(), os.times()
            environment = os.environ | variables
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            wall[name] += time.perf_counter() - start
            processor[name] += after.children_user - before.children_user
            processor[name] += after.children_system - before.children_system
    (chosen, *_) = processor.values()
    for name, seconds in processor.items():
        print(f"{name:<32} {seconds / TURNS:.1f} s of processor time", end=", ")
        print(f"{wall[name] / TURNS:.1f} s, ratio {seconds / chosen:.2f}")


if __name__ == "__main__":
    main()
