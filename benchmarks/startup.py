"""What starting costs: commands that do little, and a run of one trivial test.

Each number is processor time, the least of several rounds: it hardly depends on what else runs. All
are measured in turns. Without plugins, pytest is what the plugin's cost is compared with. What
cases need is imported once before the first of them, and the suites are collected, without looking
for garbage. A case of JAX waits for no torch_xla.
Usage: ``uv run benchmarks/startup.py [--rounds 10]``.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[1]
HARNESS = ("-m", "harness")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
IMPORTS = """\
from harness.frameworks import FRAMEWORKS
from harness.isolation.preload import preload
preload([f"{name}?" for each in FRAMEWORKS.values() for name in each.preload])
"""
COLLECT = (str(ROOT / "suites"), "--lane=virtual-tpu", "--collect-only")
JAX = """\
import jax, pytest
@pytest.mark.lanes("cpu")
def test_jax(): assert jax.numpy.ones(2).sum() == 2
"""
MODULES = " ".join(f"{name}?" for each in FRAMEWORKS.values() for name in each.preload)
WITH_COLLECTIONS = "import gc\ngc.disable = gc.freeze = int\n"
LINES = {
    "xla-harness --help": (*HARNESS, "--help"),
    "xla-harness ci query --help": (*HARNESS, "ci", "query", "--help"),
    "xla-harness known": (*HARNESS, "known"),
    "xla-harness ci completion bash": (*HARNESS, "ci", "completion", "bash"),
    "one test, no plugin": (*PYTEST, "--disable-plugin-autoload"),
    "one test, pytest-xdist": (*PYTEST, "--disable-plugin-autoload", "-p", "xdist"),
    "one test, xla-harness": (*PYTEST, "--disable-plugin-autoload", "-p", "harness.plugin"),
    "one case of JAX": (*PYTEST, "cases"),
    "the same, all frameworks imported": (*PYTEST, "-o", f"xla_preload={MODULES}", "cases"),
    "what cases need": ("-c", IMPORTS),
    "what cases need, with collections": ("-c", f"{WITH_COLLECTIONS}{IMPORTS}"),
    "collecting the suites": (*PYTEST, *COLLECT),
    "the same, with collections": (
        "-c",
        f"{WITH_COLLECTIONS}import pytest\npytest.main({[*PYTEST[2:], *COLLECT]})",
    ),
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_trivial.py").write_text("def test_trivial():\n    pass\n")
        (Path(folder) / "cases").mkdir()
        (Path(folder) / "cases" / "test_jax.py").write_text(JAX)
        (Path(folder) / "pytest.ini").write_text("[pytest]\nnorecursedirs = cases\n")
        for line in LINES.values():  # compiles the modules
            seconds(line, folder)
        durations: dict[str, list[float]] = {name: [] for name in LINES}
        for _ in range(rounds):
            for name, line in LINES.items():
                durations[name].append(seconds(line, folder))
    for name, each in durations.items():
        print(f"{name:<34}{min(each):>6.2f} s")


def seconds(line: tuple[str, ...], folder: str) -> float:
    """Processor time of one run: commands in this project, pytest in the folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *line],
        cwd=folder if "pytest" in line else ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
