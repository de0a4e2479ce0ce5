"""A run's JUnit report, read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from junitparser import JUnitXmlError
from junitparser.xunit2 import JUnitXml, TestCase

from harness.errors import BadInputError
from harness.outcome import Kind
from harness.versions import COMPONENTS

# Properties of the whole report. The format changes when a reader of the last one would be wrong.
FORMAT_PROPERTY = "xla_harness_report"
FORMAT = "2"
STACK_PROPERTY = "stack"  # the name that the run was given, in the variable below
STACK_VARIABLE = "XLA_HARNESS_STACK"
LEFT_OUT = "left out: "


@dataclass(frozen=True)
class Result:
    """What one run says of one case."""

    id: str
    lane: str
    topology: str
    outcome: Kind
    failure: str  # the message of what went wrong, expected or not
    layer: str  # where it went wrong, one of harness.layers; "" if it did not
    text: str  # all that the report says of it
    seconds: float
    properties: Mapping[str, str]

    @property
    def key(self) -> str:
        """The case and where it ran; the id alone for a case that names its lane."""
        return self.id if f"[{self.lane}-" in self.id else f"{self.id} @{self.lane}-{self.topology}"

    @property
    def upstream(self) -> tuple[str, ...]:
        """The issues that the case watches."""
        return tuple(self.properties.get("upstream", "").split())

    @property
    def expectation(self) -> str:
        """The cause that its expectation names: an issue, or ``finding NAME``; "" without one."""
        return self.properties.get("expectation", "")

    @property
    def works(self) -> bool:
        """Whether the case did what it asserts, expected or not."""
        return self.outcome in (Kind.PASSED, Kind.UNEXPECTED_PASS)

    @property
    def measured(self) -> bool:
        """Whether the case ran to an answer."""
        return self.outcome != Kind.SKIPPED


@dataclass(frozen=True)
class Report:
    """One run: the stack and what became of each case, by ``Result.key``."""

    path: Path
    stack: str  # "" where the run was not told one
    versions: Mapping[str, str]  # component to version
    results: Mapping[str, Result]
    left_out: Mapping[str, int]  # by cause
    uncollected: Mapping[str, str] = field(default_factory=dict)  # file to why, in a line


def read(path: Path) -> Report:
    """Read a report that this version of the harness wrote.

    Raises BadInputError for what is no such report, naming the file and what was expected.
    """
    try:
        suites = list(JUnitXml.fromfile(str(path)))
    except (OSError, JUnitXmlError, SyntaxError, ValueError) as error:
        raise BadInputError(f"{path}: expected a JUnit report: {error}") from error
    own = {name: value for suite in suites for name, value in _properties(suite).items()}
    found = own.get(FORMAT_PROPERTY)
    if found != FORMAT:
        said = f"says {found}" if found else "has none"
        raise BadInputError(
            f"{path}: expected the property {FORMAT_PROPERTY} to be {FORMAT}, the report {said}: "
            "another version of xla-harness or another tool wrote it; run the cases again"
        )
    results: dict[str, Result] = {}
    for suite in suites:
        for case in suite:
            result = _result(path, cast("TestCase", case))
            # A second failure of one case is a second element; the first says why.
            if result is not None:
                results.setdefault(result.key, result)
    return Report(
        path=path,
        stack=own.get(STACK_PROPERTY, ""),
        versions={name: own[name] for name in ("python", *COMPONENTS) if name in own},
        results=results,
        left_out={
            name.removeprefix(LEFT_OUT): int(value)
            for name, value in own.items()
            if name.startswith(LEFT_OUT)
        },
        uncollected=dict(
            _uncollected(case) for suite in suites for case in suite if _is_file(case)
        ),
    )


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


def _properties(element: Any) -> dict[str, str]:
    return {entry.name: entry.value for entry in element.properties()}


def _result(path: Path, case: TestCase) -> Result | None:
    properties = _properties(case)
    if "outcome" not in properties:
        return None  # a plain test beside the cases
    try:
        return Result(
            id=properties["id"],
            lane=properties["lane"],
            topology=properties["topology"],
            outcome=Kind(properties["outcome"]),
            failure=properties.get("failure", ""),
            layer=properties.get("layer", ""),
            text="\n".join(entry.text or "" for entry in case.result),
            seconds=float(case.time or 0),
            properties=properties,
        )
    except (KeyError, ValueError) as error:
        raise BadInputError(f"{path}: test case {case.name}: property {error}") from error
