"""How much sooner the matrix answers with its cells side by side than one after the other.

``python benchmarks/matrix.py [--stacks A,B] [-- PYTEST ARGUMENTS]`` runs the same cells both ways,
in turns, in environments that exist, and prints the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

ROUNDS = 3
DEFAULT = ["suites/spmd_specs/test_partition_specs.py", "suites/dtensor/test_operators.py"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stacks", default="2.5.1,2.9.0")
    parser.add_argument("--lanes", default="cpu,virtual-tpu")
    options, rest = parser.parse_known_args()
    paths = [text for text in rest if text != "--"] or DEFAULT
    cores = os.cpu_count() or 1
    seconds: dict[int, list[float]] = {1: [], cores: []}
    run(options, paths, cores)  # makes the environments
    for _ in range(ROUNDS):
        for jobs, times in seconds.items():
            times.append(run(options, paths, jobs))
    serial, all_ = median(seconds[1]), median(seconds[cores])
    print(f"one after the other {serial:.1f} s, {cores} side by side {all_:.1f} s")
    print(f"ratio {serial / all_:.2f}")


def run(options: argparse.Namespace, paths: list[str], jobs: int) -> float:
    """Seconds of one matrix."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness", "matrix", "--stacks", options.stacks]
        command += ["--lanes", options.lanes, "--jobs", str(jobs), "--out", folder, "--", *paths]
        start = time.monotonic()
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 1):
            raise SystemExit(done.returncode)
        return time.monotonic() - start


if __name__ == "__main__":
    main()
