"""The programs that a test compiles when it fails: JAX's StableHLO, or what a plugin was given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import frameworks
from harness.errors import BadInputError
from harness.isolation import libc
from harness.junit.report import read
from harness.junit.result import Result
from harness.lanes import LANES
from harness.lanes.virtual.callbacks import PLANTER_VARIABLE
from harness.model.topology import Topology

FOLDER_VARIABLE = "XLA_HARNESS_KEPT_PROGRAMS"
_KEEPER = "harness.reduce.kept"
_RAN = (0, 1)  # exit codes of pytest: all passed, some failed
_MODULE = re.compile(r"^module @\S+ attributes {", re.MULTILINE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class RecordedCase:
    """A test's result, and the programs that it compiled in the order in which it did."""

    result: Result
    programs: Sequence[str]  # StableHLO


def failed_case(source: str) -> tuple[Result, str]:
    """Return the failed case of a report, and the report's stack; "" of a run without one.

    ``source`` is the report's path, or behind two colons a part of the case's id as well. Raises
    BadInputError if not exactly one failed.
    """
    path, _, part = source.partition("::")
    report = read(Path(path))
    failed = [each for key, each in report.results.items() if each.signature and part in key]
    if len(failed) != 1:
        ids = "".join(f"\n  {path}::{each.key}" for each in failed[:12])
        raise BadInputError(f"{source}: expected one failed case, it has {len(failed)}{ids}")
    return failed[0], report.stack


def record(case: str, lane: str, topology: str = "") -> RecordedCase:
    """Run one test and keep its programs; ``lane`` is "" for the case's own, as ``topology``.

    Raises BadInputError if no test has this id, or several have.
    """
    with tempfile.TemporaryDirectory(prefix="reduce-") as name:
        folder = Path(name)
        report, programs, plugin = (folder / part for part in ("report.xml", "jax", "plugin"))
        plugin.mkdir()
        lane = lane or next((each for each in LANES if f"[{each}-" in case), "")
        places = [("lane", lane), ("topology", "" if "[" in case else topology)]
        options = [f"--{name}={value}" for name, value in places if value]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", case, *options, f"--junitxml={report}", "-n0"),
                *("-q", "--tb=no", "-p", "no:cacheprovider"),
            ],
            env={
                **frameworks.without_lanes(os.environ),
                "JAX_DUMP_IR_TO": str(programs),
                "JAX_DUMP_IR_MODES": "stablehlo",
                PLANTER_VARIABLE: _KEEPER,
                FOLDER_VARIABLE: str(plugin),
            },
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=libc.DieWithParent(),
        )
        if done.returncode not in _RAN:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise BadInputError(f"{case}: expected a test that runs\n{last}")
        results = list(read(report).results.values())
        if len(results) != 1:
            ids = "\n  ".join(result.key for result in results[:12])
            raise BadInputError(f"{case}: expected one test, it names {len(results)}\n  {ids}")
        given = [_placed(text, results[0].topology) for text in _texts(plugin)]
        return RecordedCase(results[0], _texts(programs) or given)


def _placed(text: str, topology: str) -> str:
    """Return a plugin's program with its number of devices, which only its options said."""
    if "mhlo.num_" in text or not topology:
        return text
    kind = "partitions" if "mhlo.sharding" in text else "replicas"
    number = f"mhlo.num_{kind} = {Topology.parse(topology).total} : i32"
    return _MODULE.sub(lambda match: f"{match[0]}{number}, ", text, count=1)


def _texts(folder: Path) -> list[str]:
    paths = sorted(folder.glob("*.mlir"), key=lambda path: _place(path.name))
    return [path.read_text() for path in paths]


def _place(name: str) -> tuple[int, str]:
    match = _NUMBER.search(name)
    return (int(match[0]) if match else 0), name
