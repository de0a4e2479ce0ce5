"""List the tests and cases that could run, without running them."""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.model.case import Case
from harness.printable import folded
from harness.session.markers import case_of, parametrized_target


class _ItemList:
    """Keeps every item, before the command line's choice of lanes and topologies."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = list(items)


def collect(paths: Sequence[str]) -> list[pytest.Item]:
    """Return all tests below ``paths``, cases or not.

    Raises BadInputError with pytest's words when they can't be collected.
    """
    collector, output = _ItemList(), io.StringIO()
    # The plugin is this very package, imported before pytest could rewrite its assertions.
    arguments = ["--collect-only", "-qq", "-p", "no:xdist", "-W"]
    arguments += ["ignore::pytest.PytestAssertRewriteWarning", *paths]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, [collector])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise BadInputError(f"{' '.join(paths)} can't be collected:\n{output.getvalue().strip()}")
    return collector.items


def cases_of(items: Sequence[pytest.Item]) -> tuple[list[Case], dict[str, str]]:
    """Return the items that are cases, and the title of each area."""
    cases, titles = list[Case](), dict[str, str]()
    for item in items:
        if target := parametrized_target(item):
            case = case_of(item, target, deadline=60.0)
            cases.append(case)
            if case.area not in titles:
                titles[case.area] = _title(item)
    return cases, titles


def _title(item: pytest.Item) -> str:
    """Return the first line of the docstring of the suite's package."""
    package = item.getparent(pytest.Package)
    if package is None:
        return ""
    text = (package.path / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def as_data(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Plain values for JSON."""
    return [
        {
            "id": case.id,
            "area": case.area,
            "lane": case.target.lane,
            "topology": str(case.target.topology),
            "upstream": list(case.upstream),
        }
        for case in cases
    ]


def table(cases: Sequence[Case], titles: Mapping[str, str], width: int) -> str:
    """Return a paragraph for each area, in lines of ``width``."""
    lines = []
    for area, group in groupby(sorted(cases, key=lambda case: case.area), lambda case: case.area):
        members = list(group)
        issues = sorted({issue for case in members for issue in case.upstream})
        lanes = sorted({case.target.lane for case in members})
        topologies = sorted({case.target.topology for case in members})
        lines += [
            f"{area}: {len(members)} cases",
            *folded(titles[area], width, "  ", "  "),
            f"  lanes       {' '.join(lanes)}",
            f"  topologies  {' '.join(map(str, topologies))}",
            *folded(" ".join(issues), width, "  upstream    ", " " * 14),
        ]
    return "\n".join([*lines, f"{len(cases)} cases in all"])
