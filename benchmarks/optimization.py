"""What LLVM's optimization costs cases that run on the virtual TPU.

Runs the same files of the suites as the virtual TPU compiles unless it is told otherwise, without
LLVM's optimization, and with XLA's own default, in turns, and compares the processor time.
Usage: ``uv run benchmarks/optimization.py [pytest arguments]``.
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
FLAGS = {"without": "", "with": "--xla_backend_optimization_level=3"}
TURNS = 2


def main() -> None:
    """Measure and print."""
    given = sys.argv[1:] or FILES
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--lane=virtual-tpu", *given]
    wall, processor = dict.fromkeys(FLAGS, 0.0), dict.fromkeys(FLAGS, 0.0)
    for _ in range(TURNS):
        for name, flags in FLAGS.items():
            start, before = time.perf_counter(), os.times()
            environment = os.environ | {"XLA_FLAGS": flags}
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            wall[name] += time.perf_counter() - start
            processor[name] += after.children_user - before.children_user
            processor[name] += after.children_system - before.children_system
    for name in FLAGS:
        print(f"{name:<8} {processor[name] / TURNS:.1f} s of processor time", end=", ")
        print(f"{wall[name] / TURNS:.1f} s")
    print(f"ratio    {processor['with'] / processor['without']:.2f}")


if __name__ == "__main__":
    main()
