"""A run's JUnit report, read back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import BadInputError
from harness.junit.case import error_lines, is_file
from harness.junit.properties import (
    FORMAT,
    FORMAT_PROPERTY,
    LEFT_OUT,
    REUSED_WRONGLY,
    STACK_PROPERTY,
    VERSIONS,
)
from harness.junit.reader import Reader
from harness.junit.result import Result, settled
from harness.model.wheel_checksums import PROPERTY as WHEELS
from harness.model.wheel_checksums import read_property

_MOST_DIGITS = 18  # of a count


@dataclass(frozen=True)
class Report:
    """Report of one run: the stack, and each case's result by ``Result.key``.

    ``faults`` name the parts of the file that can't be read and are left out.
    """

    path: Path
    stack: str  # "" where the run was not told one
    versions: Mapping[str, str]  # component to version
    results: Mapping[str, Result]
    left_out: Mapping[str, int]  # how many cases, by reason, such as ``lane tpu: ...``
    uncollected: Mapping[str, str] = field(default_factory=dict)  # file to why, in a line
    faults: tuple[str, ...] = ()
    wheels: Mapping[str, str] = field(default_factory=dict)  # package to SHA-256 of its own wheel


def read(path: Path) -> Report:
    """Read a report that this version of the harness wrote.

    Raises BadInputError for what is no such report, naming the file and what was expected.
    """
    reader = Reader(path)
    attempts: defaultdict[tuple[str, str, str], list[Result]] = defaultdict(list)
    uncollected: dict[str, str] = {}
    for element in reader.elements(some=False):
        if element.ours and not element.second:
            attempts[element.result.place].append(element.result)
        elif not element.ours and is_file(element.reported.case):
            uncollected.update([_uncollected(element.reported.case)])
    own = reader.head.properties
    if FORMAT_PROPERTY not in own:
        raise BadInputError(
            f"{path}: expected the property {FORMAT_PROPERTY} to be {FORMAT}, the report has none: "
            "another tool wrote it"
        )
    results = [*map(settled, attempts.values())]
    left_out, faults = _left_out(own)
    faults += [
        f"{result.key}: reuse was wrong: {wrong}"
        for result in results
        if (wrong := result.properties.get(REUSED_WRONGLY))
    ]
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
    """Read the reports; return those that parse, and what is wrong with any of them.

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


def _uncollected(case: Any) -> tuple[str, str]:
    text = str(case.result[0].text or "")
    errors = error_lines(text)
    skipped = re.search(r"Skipped: (.*?)[\"']?\)$", text, re.DOTALL)
    why = skipped[1] if skipped else errors[0] if errors else text.partition("\n")[0]
    return f"{case.name.replace('.', '/')}.py", f"can't be collected: {why.strip()}"


def _left_out(own: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """Return how many cases were left out, by cause, and what is wrong with other values."""
    counts, faults = dict[str, int](), list[str]()
    for name, value in own.items():
        if name.startswith(LEFT_OUT) and value.isascii() and value.isdigit():
            counts[name.removeprefix(LEFT_OUT)] = int(value[:_MOST_DIGITS])
        elif name.startswith(LEFT_OUT):
            faults.append(f"property {name!r}: expected a number, found {value[:50]!r}")
    return counts, faults
