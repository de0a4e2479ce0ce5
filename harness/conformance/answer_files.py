"""Answers as files: a JUnit report that ``record`` and ``verdict`` read, and a README's badge."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

from junitparser.junitparser import Failure, Skipped
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from harness.conformance.answer import CheckAnswer, Conformance
from harness.conformance.plugin_check import LEVELS, Conformity, level_of
from harness.diagnosis.cause import signature_of
from harness.junit.properties import FORMAT, FORMAT_PROPERTY, STACK_PROPERTY
from harness.junit.seal import sealed
from harness.model.outcome import Kind
from harness.model.versions import stack_versions

LANE = "pjrt"
_KINDS = {
    Conformity.CONFORMS: Kind.PASSED,
    Conformity.UNSUPPORTED: Kind.SKIPPED,
    Conformity.NOT_MEASURABLE: Kind.SKIPPED,
}


def junit(answer: Conformance) -> str:
    """Return the answers as a report of one run, whose cases are the checks."""
    suite: Any = TestSuite("xla-harness conformance")  # type: ignore[no-untyped-call]
    for name, value in (
        (FORMAT_PROPERTY, FORMAT),
        (STACK_PROPERTY, answer.name),
        *stack_versions().items(),
    ):
        suite.add_property(name, value)
    suite.timestamp = datetime.now(UTC).isoformat()
    suite.hostname = platform.node()
    suite.add_testcases([_case(answer, each) for each in answer.answers])
    report: Any = JUnitXml()
    report.add_testsuite(suite)
    report.update_statistics()
    return sealed(report.tostring().decode())


def _case(answer: Conformance, check: CheckAnswer) -> Any:
    folder, area, name = check.id.split("/", 2)
    level = level_of(check.id)
    kind = _KINDS.get(check.result) or Kind(check.kind)
    case = TestCase(name, f"conformance.{folder}.{area}", round(check.seconds, 3))
    failed = check.result is Conformity.FAILS
    message = f"{check.result}: {check.detail}" if check.detail else str(check.result)
    if failed:
        case.result = Failure(check.detail)
        case.result[0].text = "\n".join([check.detail, *check.steps, check.program, check.output])
    elif kind is Kind.SKIPPED:
        case.result = Skipped(message)
    id_ = f"conformance/{folder}/{area}.py::{name}"
    properties = {
        "id": id_,
        "area": folder,
        "lane": LANE,
        "topology": str(max(int(answer.plugin.get("devices", 0)), 1)),
        "isolation": "process",
        "actual": str(kind),
        "outcome": str(kind),
        "outcome_detail": "" if failed else message,
        "failure": check.detail if failed else "",
        "layer": "execution" if failed else "",
        "signature": signature_of(id_, check.detail) if failed else "",
        "plugin": answer.name,
        "plugin_api": ".".join(map(str, answer.plugin.get("api", ()))),
        "plugin_says": str(answer.plugin.get("version", "")).split("\n")[0],
        "conformity": str(check.result),
        "conformity_level": f"L{level.number} {level.about}",
    }
    for key, value in properties.items():
        if value:
            case.add_property(key, value)
    return case


def badge(answer: Conformance) -> dict[str, Any]:
    """Return the badge as shields.io reads it from an address.

    https://shields.io/badges/endpoint-badge
    """
    counts = answer.counts()
    measured = counts[Conformity.CONFORMS] + counts[Conformity.FAILS]
    levels = ", ".join(f"L{level.number}" for level in LEVELS if answer.counts(level.number))
    message = f"{counts[Conformity.CONFORMS]} of {measured} check{'s' * (measured != 1)}, {levels}"
    return {
        "schemaVersion": 1,
        "label": "PJRT conformance",
        "message": message if measured else "not measurable",
        "color": "lightgrey" if not measured else "green" if answer.conforms else "orange",
    }
