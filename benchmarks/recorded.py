"""What the cases of a benchmark record of themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from junitparser import JUnitXml, Properties


def recorded(folder: str, *options: str) -> Iterator[tuple[str, str]]:
    """Run the tests in a folder with pytest; the name and value of each property of each case."""
    report = Path(folder) / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cov"]
    command += [*options, f"--junitxml={report}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for suite in JUnitXml.fromfile(str(report)):
        for case in suite:
            for item in case.child(Properties) or ():
                yield item.name, item.value
