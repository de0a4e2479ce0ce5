"""Sixty nights of two stacks, as JUnit reports, with what was planted in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

NIGHTS = 60
FIRST = datetime(2026, 9, 1, 2, 30, tzinfo=UTC)
STACKS = ("2.9.0", "nightly")
PLAIN = 12  # cases a lane in which nothing happens
LANES = (("cpu", "4"), ("virtual-tpu", "2x4"))
ALWAYS = range(NIGHTS)

Expected = tuple[int, str, str, str]  # night, stack, kind of verdict, test function


@dataclass(frozen=True)
class Planted:
    """What happens to one case of lane cpu, and on which nights which verdicts are due."""

    outcome: Callable[[int], str] = lambda _: "passed"  # "" for a night without the case
    due: dict[str, range | list[int]] = field(default_factory=dict)
    stacks: tuple[str, ...] = STACKS
    slow: Callable[[int], float] = lambda _: 1.0  # times its duration
    numbers: Callable[[int], dict[str, str]] = lambda _: {}
    message: str = "AssertionError: sums differ: {0} at 0x{0:x}"


def _bad(outcome: str, *nights: range) -> Callable[[int], str]:
    return lambda night: outcome if any(night in each for each in nights) else "passed"


def _one(night: int) -> range:
    return range(night, night + 1)


def _until(end: int, outcome: str, then: str = "passed") -> Callable[[int], str]:
    return lambda night: outcome if night < end else then


PLANTED = {
    "regresses": Planted(
        _bad("failed", range(20, 60)), {"regressed": [20], "still failing": range(21, 60)}
    ),
    "regresses_likewise": Planted(
        _bad("failed", range(20, 60)), {"regressed": [20], "still failing": range(21, 60)}
    ),
    "is_fixed": Planted(
        _bad("failed", range(15, 30)),
        {"regressed": [15], "still failing": range(16, 30), "fixed": [30]},
        message="ValueError: shape ({0}, 2) in /tmp/run{0}/x.py",
    ),
    "crashes": Planted(
        _bad("crashed", range(40, 60)),
        {"regressed": [40], "still failing": range(41, 60), "crashed": range(40, 60)},
        message="SIGABRT in sync: Check failed: {0}",
    ),
    "hangs": Planted(
        _bad("hung", range(10, 26)),
        {"regressed": [10], "still failing": range(11, 26), "hung": range(10, 26), "fixed": [26]},
        message="hung for {0} s",
    ),
    # One failure is a regression until it goes away by itself; then it is flaky for a week.
    "flakes": Planted(
        _bad("failed", _one(12), _one(18)),
        {"regressed": [12], "flaky": range(13, 24)},
        stacks=("2.9.0",),
        message="TimeoutError: {0} s",
    ),
    # Where every night has other versions, the same is a regression and a fix.
    "comes_and_goes": Planted(
        _bad("failed", _one(12)),
        {"regressed": [12], "fixed": [13]},
        stacks=("nightly",),
        message="MemoryError: {0}",
    ),
    "fixed_upstream": Planted(
        _until(33, "expected failure", "unexpected pass"),
        {"still failing": range(1, 33), "fixed": [33]},
    ),
    # A failure that is declared from its first night on has regressed, as expected.
    "declared": Planted(
        _until(22, "passed", "expected failure"),
        {"regressed": [22], "still failing": range(23, 60)},
    ),
    "fails_otherwise": Planted(
        # Broken as expected, then not, then again: that is not flaky, it never worked.
        lambda night: "failed" if night in (26, 27) else "expected failure",
        {"still failing": [*range(1, 26), *range(27, 60)], "new failure": [26]},
        message="KeyError: {0}",
    ),
    "is_new_and_fails": Planted(
        _until(25, "", "failed"),
        {"new failure": [25], "still failing": range(26, 60)},
        message="NameError: x{0}",
    ),
    "is_new": Planted(_until(30, "")),
    "goes_and_returns": Planted(_bad("", range(35, 45)), {"missing": [35]}),
    "skips": Planted(
        lambda night: "passed" if night < 28 else "skipped" if night < 38 else "failed",
        {"missing": [28], "regressed": [38], "still failing": range(39, 60)},
        message="OSError: {0}",
    ),
    "always_skips": Planted(lambda _: "skipped"),
    "slows": Planted(due={"slower": [32]}, slow=lambda n: 1.6 if 30 <= n < 50 else 1.0),
    # A run in which it fails says nothing of how long it takes.
    "slows_and_fails": Planted(
        _bad("failed", _one(31)),
        {"regressed": [31], "fixed": [32], "slower": [34]},
        stacks=("nightly",),
        slow=lambda n: 1.6 if n >= 30 else 1.0,
        message="EOFError: {0}",
    ),
    "takes_now_less_now_more": Planted(slow=lambda n: (0.6, 0.8, 1.0, 1.3, 1.4, 1.5)[n % 6]),
    "is_slow_twice": Planted(slow=lambda n: 5.0 if n in (20, 21) else 1.0),
    "compiles_more": Planted(
        due={"slower": [43]}, numbers=lambda n: {"compilations": "4" if n >= 41 else "3"}
    ),
    "discovers_again": Planted(
        due={"slower": [46]}, numbers=lambda n: {"discoveries": "1" if n >= 44 else "0"}
    ),
    "says_more": Planted(numbers=lambda n: {"kernel": "nan", "note": "2.9", "loss": f"-{n % 3}"}),
    # One measurement, however many nights reuse it.
    "was_slow_once": Planted(
        slow=lambda n: 1.6 if 30 <= n < 34 else 1.0,
        numbers=lambda n: {"reused": "2026-10-01T02:31:00Z 2.9.0"} if 31 <= n < 34 else {},
    ),
}
LOST_LANE = 50  # the night on which nobody asked for lane virtual-tpu


def due() -> set[Expected]:
    """Every verdict that the rules must give, and no other."""
    return {
        (night, stack, kind, name)
        for name, planted in PLANTED.items()
        for stack in planted.stacks
        for kind, nights in planted.due.items()
        for night in nights
    }


def write(folder: Path) -> list[Path]:
    """A report for each night and stack, oldest first."""
    paths = []
    for night in ALWAYS:
        for stack in STACKS:
            path = folder / f"{night:02}-{stack}.xml"
            ET.ElementTree(_report(night, stack)).write(path, encoding="utf-8")
            paths.append(path)
    return paths


def _report(night: int, stack: str) -> ET.Element:
    time = FIRST + timedelta(days=night, minutes=STACKS.index(stack))
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", timestamp=time.isoformat(), hostname="runner")
    xla = f"2.10.0.dev{night}" if stack == "nightly" else "2.9.0"
    versions = {"python": "3.11.7", "torch_xla": xla, "jax": "0.7.1"}
    _properties(suite, {"xla_harness_report": "3", "stack": stack, **versions})
    for lane, topology in LANES:
        if (night, lane) != (LOST_LANE, "virtual-tpu"):
            for name, planted in _cases(stack, lane):
                properties = _said(f"{name}[{lane}-{topology}]", night, planted)
                if properties["outcome"]:
                    chance = random.Random(f"{name} {lane} {stack} {night}")
                    seconds = _seconds(name, chance) * planted.slow(night)
                    _case(suite, {**properties, "lane": lane, "topology": topology}, seconds)
    return root


def _cases(stack: str, lane: str) -> Iterator[tuple[str, Planted]]:
    for number in range(PLAIN):
        yield f"plain_{number}", Planted()
    if lane == "cpu":
        yield from ((name, each) for name, each in PLANTED.items() if stack in each.stacks)


def _seconds(name: str, chance: random.Random) -> float:
    """What a case takes: 4 % of noise, and one night in a hundred four times as long."""
    base = 0.05 + (sum(map(ord, name)) % 50) / 20
    return base * chance.gauss(1, 0.04) * (4 if chance.random() < 0.01 else 1)


def _said(name: str, night: int, planted: Planted) -> dict[str, str]:
    outcome = planted.outcome(night)
    properties = {"id": f"suites/sums/test_x.py::test_{name}", "area": "sums", "outcome": outcome}
    if outcome not in ("passed", "skipped", "unexpected pass"):
        properties |= {"failure": planted.message.format(night + 1), "layer": "numbers"}
    if outcome in ("expected failure", "unexpected pass"):
        properties["expectation"] = "pytorch/xla#1"
    meant = {"expected failure": "failed", "unexpected pass": "passed"}
    properties["actual"] = meant.get(outcome, outcome)
    return properties | planted.numbers(night)


def _case(suite: ET.Element, properties: dict[str, str], seconds: float) -> None:
    name = properties["id"].rpartition("::")[2]
    case = ET.SubElement(suite, "testcase", name=name, time=f"{seconds:.3f}")
    _properties(case, properties)


def _properties(parent: ET.Element, values: dict[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=value)
