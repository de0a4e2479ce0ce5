"""Complete a report with what a former one says of files that did not run again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from junitparser.xunit2 import TestSuite

from harness import files
from harness.junit.properties import LEFT_OUT, REUSED, STACK_PROPERTY, when_measured
from harness.junit.reader import Reader
from harness.junit.seal import sealed
from harness.junit.stream import Head
from harness.model.case_id import file_of


def complete(report: Path, former: Path, of_files: Collection[str]) -> None:
    """Add the cases of those files that the ``former`` report has; each says when it was measured.

    How many cases were left out, and why, remains what the former report says, since the new one
    counts them in some files only. Raises BadInputError for a former report that can't be read.
    """
    reader = Reader(former, output=True)
    kept = [each for each in reader.elements(some=False) if file_of(each.result.id) in of_files]
    whole: Any = ET.parse(report)  # noqa: S314 - the harness wrote it a moment ago
    suite: Any = TestSuite.fromelem(whole.find(".//testsuite"))  # type: ignore[no-untyped-call]
    for each in kept:
        if each.ours:
            each.reported.properties.setdefault(REUSED, _measured(reader.head))
        suite._elem.append(each.xml()._elem)
    former_counts = {k: v for k, v in reader.head.properties.items() if k.startswith(LEFT_OUT)}
    for entry in list(suite.properties()):
        if entry.name in former_counts:
            suite.remove_property(entry)
    for name, value in former_counts.items():
        suite.add_property(name, value)
    suite.update_statistics()
    files.write({report: sealed(ET.tostring(whole.getroot(), encoding="unicode"))})


def _measured(head: Head) -> str:
    """Return when a report's cases were measured, as a case says it that was reused."""
    began = datetime.fromisoformat(head.attributes["timestamp"])
    return when_measured(began, head.properties.get(STACK_PROPERTY, ""))
