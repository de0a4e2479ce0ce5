"""Histories of many nights for tests of the site, from what becomes of each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.history.format import FORMAT, SCHEMA, with_checksum
from harness.history.names import RunFile, run_name
from harness.history.storage import Folder

FIRST = date(2026, 1, 1)
Row = dict[str, Any]


@dataclass(frozen=True)
class Night:
    """One run to be: which night, on which stack. Half a night later it is a second run."""

    number: float
    stack: str

    @property
    def time(self) -> datetime:
        first = datetime(FIRST.year, FIRST.month, FIRST.day, 2, 30, tzinfo=UTC)
        return first + timedelta(self.number)


@dataclass(frozen=True)
class Told:
    """A case and what becomes of it in a run: the columns that differ from a pass in 0.1 s."""

    name: str
    area: str = "collectives"
    lane: str = "cpu"
    topology: str = "4"
    upstream: Sequence[str] = ()
    becomes: Callable[[Night], Row | None] = field(default=lambda night: {})

    def row(self, night: Night) -> Row | None:
        """Its row; None when it did not run."""
        changed = self.becomes(night)
        if changed is None:
            return None
        plain: Row = {
            "case": self.name,
            "area": self.area,
            "lane": self.lane,
            "topology": self.topology,
            "outcome": "passed",
            "expected": False,
            "duration": 0.1,
            "message": "",
            "signature": "",
            "layer": "",
            "upstream": list(self.upstream),
            "properties": [],
            "rerun": 0,
        }
        return plain | changed


def fails(message: str, outcome: str = "failed", layer: str = "execution") -> Row:
    """A row of a case that went wrong."""
    return {"outcome": outcome, "message": message, "signature": message[:60], "layer": layer}


def write(
    folder: Path,
    cases: Sequence[Told],
    nights: Sequence[float],
    stacks: Sequence[str] = ("2.8.0", "2.9.0"),
    versions: Callable[[Night], dict[str, str]] = lambda night: {},
) -> None:
    """Write a run of all cases for each night and stack."""
    for number in nights:
        for stack in stacks:
            night = Night(number, stack)
            rows = [row for case in cases if (row := case.row(night))]
            digest = sha256(f"{number} {stack}".encode()).hexdigest()
            place = RunFile(run_name(night.time, len(rows), digest), stack)
            properties = {"torch": stack, "torch_xla": stack, "python": "3.11.7", "jax": "0.7.1"}
            properties |= {"jaxlib": "0.7.1", "libtpu": "0.0.23"} | versions(night)
            common = {
                "format": FORMAT,
                "run": place.run,
                "time": night.time,
                "commit": "c0ffee",
                **properties,
            }
            table = pa.Table.from_pylist(
                [common | {"machine": "lab", **row} for row in rows], schema=SCHEMA
            )
            Folder(folder, lasting=False).add(place.name, with_checksum(table, place))


def flaking(night: Night) -> Row:
    """Fails every third night."""
    return fails("RuntimeError: rendezvous timed out") if night.number % 3 == 0 else {}


def example(folder: Path, last: int = 14) -> None:
    """Nights 0 to ``last`` with one planted change of each kind in the last one, on stack 2.9.0."""

    def now(night: Night, row: Row | None, otherwise: Row | None = None) -> Row | None:
        return row if (night.number, night.stack) == (last, "2.9.0") else otherwise or {}

    known = fails("XlaRuntimeError: INVALID_ARGUMENT", "expected failure", "compile")
    known |= {"expected": True, "properties": [("expectation", "pytorch/xla#8854")]}
    cases = [Told(f"suites/collectives/test_sums.py::test_sum[cpu-4-{n}]") for n in range(12)] + [
        Told(
            "suites/collectives/test_sums.py::test_regressed[cpu-4]",
            upstream=("pytorch/xla#8854",),
            becomes=lambda night: now(night, fails("AssertionError: numbers: 3 of 8 differ")),
        ),
        Told(
            "suites/collectives/test_sums.py::test_fixed[cpu-4]",
            becomes=lambda night: now(night, {}, fails("ValueError: no such group")),
        ),
        Told("suites/spmd/test_specs.py::test_flaky[cpu-4]", area="spmd", becomes=flaking),
        Told(
            "suites/spmd/test_specs.py::test_missing[cpu-4]",
            area="spmd",
            becomes=lambda night: now(night, None),
        ),
        Told(
            "suites/spmd/test_specs.py::test_slower[cpu-4]",
            area="spmd",
            becomes=lambda night: {"duration": 1.5 if night.number > last - 3 else 0.1},
        ),
        Told(
            "suites/spmd/test_specs.py::test_known[cpu-4]",
            area="spmd",
            upstream=("pytorch/xla#8854",),
            becomes=lambda night: known if night.stack == "2.8.0" else {},
        ),
        *(
            Told(
                f"suites/spmd/test_specs.py::test_crashes[cpu-4-{which}]",
                area="spmd",
                becomes=lambda night: fails("SIGABRT in compile", "crashed"),
            )
            for which in "ab"
        ),
        Told(
            "test_x.py::test_\x1b[0m\u202e<b>&amp;]]>",
            area="hostile",
            becomes=lambda night: (
                fails("\x00\x1b]]><!--") if (night.number, night.stack) == (last, "2.8.0") else {}
            ),
        ),
        Told(
            "suites/flash/test_discovery.py::test_discovers[virtual-tpu-2x4]",
            area="flash",
            lane="virtual-tpu",
            topology="2x4",
            upstream=("pytorch/xla#8812",),
            becomes=lambda night: {
                "properties": [("discoveries", str(1 + (night.number == 5))), ("clients", "1")]
            },
        ),
        Told(
            "suites/flash/test_kernel.py::test_kernel[cpu-4]",
            area="flash",
            becomes=lambda night: {"outcome": "skipped", "message": "needs a TPU of 4 chips"},
        ),
        Told(
            "suites/flash/test_kernel.py::test_kernel[virtual-tpu-4]",
            area="flash",
            lane="virtual-tpu",
        ),
        *HOSTILE,
    ]
    write(folder, cases, range(last + 1))


# Names, messages and properties that want to be more than text.
SCRIPT = "<script>document.title='owned'</script>"
HOSTILE = [
    Told(
        f"test_x.py::test_{SCRIPT}[\"'`onmouseover=alert(1)]",
        area=f"</table>{SCRIPT}",
        topology="<b>",
        upstream=("javascript:alert(1)", 'a/b#1"><script>x</script>'),
        becomes=lambda night: (
            fails(f"{SCRIPT}\n]]>&lt;\x1b[31m\x00\u202etxt")
            | {"properties": [(SCRIPT, "1"), ("bytes", "1e400"), ("nan", "nan"), ("text", SCRIPT)]}
        ),
    ),
    Told("../../../../etc/passwd", area="../..", lane="../lane", topology=".."),
    Told("javascript:alert(1)", area="javascript:alert(1)", lane="", topology=""),
    Told("", area="", lane="", topology=""),
    Told("{{ 7 * 7 }}{% raw %}", area="{{ 7 * 7 }}"),
    Told("a" * 3000, area="long"),
]


def moving(folder: Path) -> None:
    """One night of torch_xla on stack 2.9.0, and of torch_tpu on a stack of its own."""
    stacks = {"torch_xla": "2.9.0", "torch_tpu": "torch_tpu-0.2.0"}

    def asked(name: str, framework: str, at: str = "4", **outcomes: Row | None) -> Told:
        def becomes(night: Night) -> Row | None:
            row = outcomes.get(framework, {}) if night.stack == stacks[framework] else None
            return None if row is None else row | {"properties": [("framework", framework)]}

        id_ = f"suites/dtensor/test_moves.py::test_{name}[virtual-tpu-{at}-{framework}-x]"
        return Told(id_, "dtensor", "virtual-tpu", at, becomes=becomes)

    def on_both(name: str, **outcomes: Row | None) -> list[Told]:
        at = {"torch_xla": "4", "torch_tpu": "4@chip"}
        return [asked(name, each, at[each], **outcomes) for each in stacks]

    wrong = fails("AssertionError: numbers: 3 of 8 differ")
    cases = [
        *on_both("works"),
        *on_both("broken", torch_xla=fails("aborted", "crashed"), torch_tpu=wrong),
        *on_both("fixed", torch_xla=wrong),
        *on_both("breaks", torch_tpu=wrong),
        *on_both("skipped", torch_tpu={"outcome": "skipped"}),
        asked("own", "torch_xla"),
        asked("new", "torch_tpu", "4@chip"),
        Told("suites/spmd/test_specs.py::test_plain[cpu-4]", area="spmd"),
    ]
    write(
        folder,
        cases,
        [0],
        list(stacks.values()),
        lambda night: {"torch_xla": night.stack if night.stack == "2.9.0" else ""},
    )
