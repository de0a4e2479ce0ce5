"""A case's script, from its item."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

from harness.model.outcome import Kind
from harness.model.provenance import modified_components
from harness.model.versions import ABSENT, installed
from harness.repro.bundle import Bundle
from harness.repro.cases import Found
from harness.repro.check import Ending
from harness.repro.header import About
from harness.repro.script import text
from harness.repro.source import Sources
from harness.repro.steps import Steps

_MOST = 600  # characters of a failure's message
_MOST_ITEMS = 8  # of a parameter that is shown
_COMPONENTS = ("torch", "torch_xla", "jax", "jaxlib")


def write(
    selected: Found,
    ending: Ending | None,
    pins: Mapping[str, str] | None = None,
    python: str = "",
) -> str:
    """Return the script of a case; ``ending`` is how its run ended.

    ``pins`` are versions by distribution, from another stack than the running one. Raises
    BadInputError for a case that can't be one script, with the reason.
    """
    item = selected.item
    jaxlib = (pins or {}).get("jaxlib") or installed("jaxlib")
    bundle = Bundle(Sources(item.config.rootpath.resolve(), jaxlib))
    steps = Steps(bundle, item, selected.case.target)
    steps.plan()
    cause = selected.expectation.cause if selected.expectation else ""
    issues = [cause] if "#" in cause else []
    python = python or platform.python_version()
    about = About(
        case=selected.case,
        expected=_expected(selected),
        observed=_observed(selected, ending),
        where=_where(selected, pins or {}, python),
        upstream=list(dict.fromkeys([*issues, *selected.case.upstream])),
        modified=() if pins else modified_components(),
    )
    return text(about, steps, pins or {}, python)


def _expected(selected: Found) -> str:
    """Return what passes: the test's own words, or its name as words, and its parameters."""
    summary = (inspect.getdoc(selected.item.function) or "").partition("\n\n")[0]
    name = selected.item.originalname.removeprefix("test_").replace("_", " ")
    values = [f"{key} {value!r}" for key, value in _parameters(selected) if _is_plain(value)]
    request = ", ".join(filter(None, (f"{name}: {summary}".rstrip(": "), *values)))
    return f"it passes ({request})".replace("\n", " ")


def _parameters(selected: Found) -> Iterable[tuple[str, object]]:
    callspec = getattr(selected.item, "callspec", None)
    own = inspect.signature(selected.item.function).parameters
    return [(k, v) for k, v in callspec.params.items() if k in own] if callspec else []


def _is_plain(value: object) -> bool:
    """Return whether the value's text says what it is, in few words."""
    if isinstance(value, tuple | list):
        return len(value) <= _MOST_ITEMS and all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


def _observed(selected: Found, ending: Ending | None) -> str:
    """Return how the case ended; of one that was not run, what its expectation declares."""
    entry = selected.expectation
    if ending is not None and ending.kind == Kind.PASSED:
        return "it passes"
    if ending is not None:
        at = f" at {ending.layer}" if ending.layer else ""
        text = str(ending).replace(str(ending.kind), f"{ending.kind}{at}", 1)
        return "\n".join(filter(None, (text[:_MOST], entry.reason if entry else "")))
    if entry is None:
        return "not run"
    return f"not run; declared: {entry.outcome}, matching {entry.signature}\n{entry.reason}"


def _where(selected: Found, pins: Mapping[str, str], python: str) -> str:
    """Return the lane, the topology and the versions that the script pins."""
    target, total = selected.case.target, selected.case.target.topology.total
    modified = (
        {} if pins else {component.name: str(component) for component in modified_components()}
    )
    versions = []
    for name in _COMPONENTS:
        version = pins.get(canonicalize_name(name)) or installed(name)
        if version != ABSENT:
            versions.append(modified.get(name, f"{name} {version}"))
    devices = f"{total} device{'s' * (total != 1)}"
    return (
        f"lane {target.lane}, topology {target.topology} ({devices})\n"
        f"{', '.join(versions)}, Python {python}"
    )
