"""A case's script, from its item."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Mapping

from harness.model.outcome import Kind
from harness.model.provenance import modified_components
from harness.model.versions import installed
from harness.repro.bundle import Bundle
from harness.repro.cases import Found
from harness.repro.check import Ending
from harness.repro.header import About
from harness.repro.script import text
from harness.repro.source import Sources
from harness.repro.steps import Steps

_MOST = 400  # characters of a failure's first line


def write(
    found: Found,
    ending: Ending | None,
    pins: Mapping[str, str] | None = None,
    python: str = "",
) -> str:
    """The script of a case; ``ending`` is how it ended when it was run.

    ``pins`` are versions by distribution, of another stack than the running one. Raises
    BadInputError for a case that can't be one script, with the reason.
    """
    item = found.item
    bundle = Bundle(Sources(item.config.rootpath.resolve()))
    steps = Steps(bundle, item, found.case.target.topology)
    steps.plan()
    cause = found.expectation.cause if found.expectation else ""
    issues = [cause] if "#" in cause else []
    about = About(
        case=found.case,
        expected=_expected(found),
        today=_today(found, ending, pins or {}),
        upstream=list(dict.fromkeys([*issues, *found.case.upstream])),
        modified=() if pins else modified_components(),
    )
    python = python or platform.python_version()
    return text(about, steps, pins or {}, python)


def _expected(found: Found) -> str:
    """The test's own words, or its name as words."""
    said = inspect.getdoc(found.item.function) or ""
    name = found.item.originalname.removeprefix("test_").replace("_", " ")
    return f"{name}: {said.partition(chr(10) * 2)[0]}".rstrip(": ").replace("\n", " ")


def _today(found: Found, ending: Ending | None, pins: Mapping[str, str]) -> str:
    entry = found.expectation
    reason = f"\n{entry.reason}" if entry else ""
    if ending is not None:
        changed = {one.name: str(one) for one in modified_components()}
        version = changed.get("torch_xla", f"torch_xla {installed('torch_xla')}")
        if ending.kind == Kind.PASSED:
            return f"passes on {version}"
        return f"{str(ending)[:_MOST]} ({version}){reason}"
    version = f"torch_xla {pins.get('torch-xla') or installed('torch_xla')}"
    if entry is None:
        return f"not run on {version}"
    return f"{entry.reason}\n{entry.outcome}, expected to match {entry.signature}"
