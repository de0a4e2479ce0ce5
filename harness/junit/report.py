"""A run's JUnit report, read back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.junit.case import settled
from harness.junit.properties import (
    FORMAT,
    FORMAT_PROPERTY,
    LEFT_OUT,
    LOST,
    RESERVED,
    STACK_PROPERTY,
    STACK_VARIABLE,
    VERSIONS,
    of_a_session,
    of_a_test,
)
from harness.junit.reader import Element, Reader
from harness.left_out import LeftOut
from harness.model.outcome import Answer, Kind
from harness.model.wheel_checksums import PROPERTY as WHEELS
from harness.model.wheel_checksums import read_property

__all__ = [
    "FORMAT",
    "FORMAT_PROPERTY",
    "LEFT_OUT",
    "RESERVED",
    "STACK_PROPERTY",
    "STACK_VARIABLE",
    "Report",
    "Result",
    "of_a_session",
    "of_a_test",
    "read",
    "read_all",
]
_MOST_DIGITS = 18  # of a count
# Of a case that only pytest reports: it does not say how one failed that was expected to.
_ACTUAL = {Kind.EXPECTED_FAILURE: Kind.FAILED, Kind.UNEXPECTED_PASS: Kind.PASSED}


@dataclass(frozen=True)
class Result:
    """What one run says of one case."""

    id: str
    lane: str
    topology: str
    outcome: Kind
    failure: str  # the message of what went wrong, expected or not
    layer: str  # where it went wrong, one of harness.diagnosis.layers; "" if it did not
    text: str  # all that the report says of it
    seconds: float
    properties: Mapping[str, str]
    lost: bool = False  # something of it can't be read, ``failure`` says what

    @property
    def key(self) -> str:
        """The case and where it ran; the id alone for a case that names its lane."""
        return self.id if f"[{self.lane}-" in self.id else f"{self.id} @{self.lane}-{self.topology}"

    @property
    def framework(self) -> str:
        """The framework that is asked, of a case that several are asked; else ""."""
        return self.properties.get("framework", "")

    @property
    def upstream(self) -> tuple[str, ...]:
        """The issues that the case watches."""
        return tuple(self.properties.get("upstream", "").split())

    @property
    def expectation(self) -> str:
        """The cause that its expectation names: an issue, or ``finding NAME``; "" without one."""
        return self.properties.get("expectation", "")

    @property
    def actual(self) -> Kind:
        """What happened, whatever was expected; conflict where a report says several things."""
        if self.outcome not in _ACTUAL:
            return self.outcome
        return Kind(self.properties.get("actual") or _ACTUAL[self.outcome])

    @property
    def expected_by(self) -> str:
        """Who expected a failure: ``expectation``, ``pytest`` by a marker of its own, or ""."""
        return self.properties.get("expected_by", "")

    @property
    def works(self) -> bool:
        """Whether the case did what it asserts, expected or not."""
        return self.outcome.answer is Answer.WORKS

    @property
    def measured(self) -> bool:
        """Whether the case ran to an answer."""
        return self.outcome.answer is not None


@dataclass(frozen=True)
class Report:
    """One run: the stack and what became of each case, by ``Result.key``.

    ``faults`` name what of the file can't be read and is left out.
    """

    path: Path
    stack: str  # "" where the run was not told one
    versions: Mapping[str, str]  # component to version
    results: Mapping[str, Result]
    left_out: Mapping[LeftOut, int]  # how many cases
    uncollected: Mapping[str, str] = field(default_factory=dict)  # file to why, in a line
    faults: tuple[str, ...] = ()
    wheels: Mapping[str, str] = field(default_factory=dict)  # package to SHA-256 of its own wheel


def read(path: Path) -> Report:
    """Read a report that this version of the harness wrote.

    Raises BadInputError for what is no such report, naming the file and what was expected.
    """
    reader = Reader(path)
    attempts: defaultdict[tuple[str, str, str], list[Element]] = defaultdict(list)
    uncollected: dict[str, str] = {}
    for element in reader.elements(some=False):
        if element.ours:
            attempts[element.case.key].append(element)
        elif _is_file(element.reported.case):
            uncollected.update([_uncollected(element.reported.case)])
    own = reader.head.properties
    if FORMAT_PROPERTY not in own:
        raise BadInputError(
            f"{path}: expected the property {FORMAT_PROPERTY} to be {FORMAT}, the report has none: "
            "another tool wrote it"
        )
    results = [_result(elements) for elements in attempts.values()]
    left_out, faults = _left_out(own)
    return Report(
        path=path,
        stack=own.get(STACK_PROPERTY, ""),
        versions={name: own[name] for name in VERSIONS if name in own},
        results={result.key: result for result in results},
        left_out=left_out,
        uncollected=uncollected,
        faults=(*reader.faults, *(f"{path}: {fault}" for fault in faults)),
        wheels=read_property(own.get(WHEELS, "")),
    )


def read_all(paths: Iterable[Path]) -> tuple[list[Report], list[str]]:
    """Those that can be read, and the faults of all.

    Raises BadInputError when there are reports and none can be read.
    """
    reports, faults = list[Report](), list[str]()
    for path in paths:
        try:
            reports.append(read(path))
            faults += reports[-1].faults
        except BadInputError as error:
            faults.append(str(error))
    if faults and not reports:
        raise BadInputError(faults[0])
    return reports, faults


def _is_file(case: Any) -> bool:
    """Whether the element stands for a module whose cases never came to be."""
    return not case.classname and any(
        (entry.message or "") in ("collection failure", "collection skipped")
        for entry in case.result
    )


def _uncollected(case: Any) -> tuple[str, str]:
    text = str(case.result[0].text or "")
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
    skipped = re.search(r"Skipped: (.*?)[\"']?\)$", text, re.DOTALL)
    why = skipped[1] if skipped else errors[0] if errors else text.partition("\n")[0]
    return f"{case.name.replace('.', '/')}.py", f"can't be collected: {why.strip()}"


def _left_out(own: Mapping[str, str]) -> tuple[dict[LeftOut, int], list[str]]:
    """How many cases were left out, by cause; and what is no such number."""
    counts, faults = dict[LeftOut, int](), list[str]()
    for name, value in own.items():
        if name.startswith(LEFT_OUT) and value.isascii() and value.isdigit():
            counts[LeftOut.parse(name.removeprefix(LEFT_OUT))] = int(value[:_MOST_DIGITS])
        elif name.startswith(LEFT_OUT):
            faults.append(f"property {name!r}: expected a number, found {value[:50]!r}")
    return counts, faults


def _result(elements: Sequence[Element]) -> Result:
    """What a case's elements say together."""
    firsts = [element for element in elements if not element.second]
    case = settled([element.case for element in firsts])
    worst = next((element for element in firsts if element.case.outcome.is_bad), firsts[-1])
    said, told, lost = worst.reported.properties, [worst], LOST in case.properties
    if case.outcome == Kind.CONFLICT or lost:
        said, told = {**said, "failure": case.message, "outcome_detail": case.message}, firsts
    return Result(
        id=case.id,
        lane=case.lane,
        topology=case.topology,
        outcome=case.outcome,
        failure=said.get("failure", ""),
        layer=case.layer,
        text="\n".join(entry.text or "" for each in told for entry in each.reported.case.result),
        seconds=case.duration,
        properties=said,
        lost=lost,
    )
