"""How much of a run of the suites is the cases' own work.

Runs ``pytest suites/ -n 2`` once and compares its wall time with the sum of the cases' own
durations (set-up, runtime start and body) divided by two.
Usage: ``uv run benchmarks/suites.py [pytest arguments]``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from junitparser import JUnitXml, Properties

WORKERS = 2
OWN = ("duration_setup", "duration_runtime_start", "duration_body")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "suites/", f"-n{WORKERS}", *sys.argv[1:]]
        start = time.perf_counter()
        subprocess.run([*command, f"--junitxml={report}"], check=False)
        wall = time.perf_counter() - start
        cases = [case for suite in JUnitXml.fromfile(str(report)) for case in suite]
    durations: defaultdict[str, float] = defaultdict(float)
    for case in cases:
        for prop in case.child(Properties) or ():
            if prop.name.startswith("duration_"):
                durations[prop.name] += float(prop.value)
    own = sum(durations[name] for name in OWN)
    print(f"\n{len(cases)} cases, {WORKERS} workers: {wall:.1f} s")
    for name, seconds in durations.items():
        print(f"  {name:<24}{seconds:>8.1f} s")
    print(f"  wall / (own durations / {WORKERS}) = {wall / (own / WORKERS):.2f}")
    body = durations["duration_body"]
    print(f"  wall / (bodies / {WORKERS})        = {wall / (body / WORKERS):.2f}")


if __name__ == "__main__":
    main()
