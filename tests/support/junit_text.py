"""JUnit reports as text, as this harness writes them."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

TIME = "2026-11-21T02:30:00+00:00"


def properties(values: dict[str, str]) -> str:
    """An element with these properties."""
    each = (f"<property name={quoteattr(k)} value={quoteattr(v)}/>" for k, v in values.items())
    return f"<properties>{''.join(each)}</properties>"


def case(name: str, outcome: str = "passed", inside: str = "", time: str = "1", **own: str) -> str:
    """A case of a.py on lane cpu; ``own`` are further properties, or other values of these."""
    usual = {"id": f"a.py::{name}", "lane": "cpu", "topology": "4", "area": "a"}
    usual |= {"outcome": outcome, "actual": outcome}
    head = f'<testcase name={quoteattr(name)} time="{time}">'
    return f"{head}{properties(usual | own)}{inside}</testcase>"


def suite(*cases: str, time: str = TIME, **facts: str) -> str:
    """A whole report, of which ``facts`` are further properties."""
    head = properties({"xla_harness_report": "3"} | facts)
    return f'<testsuite timestamp="{time}" hostname="runner">{head}{"".join(cases)}</testsuite>'


def report(path: Path, *cases: str, time: str = TIME, **facts: str) -> Path:
    """Write a report, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(suite(*cases, time=time, **facts), encoding="utf-8")
    return path
