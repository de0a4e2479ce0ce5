"""How soon a regression turns a case red, with and without reused results.

Writes slips that some case sees, from a sensitivity report, one after the other into the installed
package's file, and runs the suites on the virtual TPU until the first case fails: all cases in
their order, and then only those of which a result can't be reused, the quick ones first. The file
is restored. Slips are drawn by seed from those that a case of the arguments has seen.
Usage: ``uv run benchmarks/first_red.py SENSITIVITY.json [SLIPS] [pytest arguments]``.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from statistics import median

from harness.sensitivity.python_faults import changed
from harness.sensitivity.python_source import functions, path_of

SEED = 1


def main() -> None:
    """Measure each slip both ways, and print both medians."""
    sys.path[0] = str(Path.cwd())
    report, *more = sys.argv[1:]
    count, *arguments = more or ["8"]
    arguments = arguments or ["suites"]
    faults = json.loads(Path(report).read_text())["faults"]
    seen = [f for f in faults if any(case.startswith(tuple(arguments)) for case in f["cases"])]
    chosen = random.Random(SEED).sample(seen, min(int(count), len(seen)))
    rows = []
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        reuse = (f"--reuse={folder}", "--reuse-check=1000000")
        print(f"filling the store: {run(*arguments, *reuse)}", flush=True)
        for fault in chosen:
            path, text = with_slip(fault["program"], fault["operator"], int(fault["place"]))
            was = path.read_text()
            try:
                replace(path, text)
                in_order = run("-x", *arguments)
                reused = run("-x", *arguments, *reuse, "--first=fixtures/quick.txt")
            finally:
                replace(path, was)
            rows.append((in_order, reused))
            print(f"{fault['program']} {fault['operator']}: {in_order}, {reused}", flush=True)
    red = [row for row in rows if row[0][2] or row[1][2]]
    print(f"{len(red)} of {len(rows)} turn a case red; others are seen by long cases or elsewhere")
    for place, name in enumerate(("seconds", "processor seconds")):
        before, after = (median(row[side][place] for row in red) for side in (0, 1))
        print(f"median {name} to the first red case: {before:.1f} in order, ", end="")
        print(f"{after:.1f} with reuse and the quick ones first, ratio {after / before:.2f}")


def with_slip(name: str, operator: str, place: int) -> tuple[Path, str]:
    """Return the file of a function, and its text with the slip in it."""
    module = name.partition(":")[0]
    path, node = path_of(module), changed(name, operator, place)
    assert path is not None
    assert node is not None
    own = functions(module)[name]
    lines = path.read_text().splitlines()
    lines[own.start - 1 : own.stop - 1] = [
        textwrap.indent(ast.unparse(node), " " * node.col_offset)
    ]
    return path, "\n".join(lines) + "\n"


def replace(path: Path, text: str) -> None:
    """Write a new file in the old one's place: others may have links to the old one."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def run(*arguments: str) -> tuple[float, float, int]:
    """Return the seconds of a run, its processor seconds and its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--lane=virtual-tpu", *arguments]
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    after = os.times()
    processor = after.children_user - before.children_user
    processor += after.children_system - before.children_system
    return round(time.perf_counter() - start, 1), round(processor, 1), done.returncode


if __name__ == "__main__":
    main()
