"""Runs test files that were not written for the harness, unmodified.

Such a file may start the runtime while it is imported: a decorator asks how many devices there are.
So the process that forks never imports it. One forked process imports it to say which tests it has;
each test's own process imports it again and runs that one test.
"""

from __future__ import annotations

import base64
import marshal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.runner import collect_one_node

from harness.isolation.main_block import run_main_block
from harness.model.case import Case

_MAIN_BLOCK = "xla_harness_main_block"
Marker = tuple[str, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class FoundTest:
    """Test of a foreign file as plain data: its names below the file, its markers, its fixtures."""

    names: tuple[str, ...]
    line: int
    markers: tuple[Marker, ...]
    fixtures: tuple[str, ...]


class ForeignItem(pytest.Item):
    """Stands for a test in the process that does not import its file."""

    test: FoundTest
    file: ForeignFile
    fixturenames: list[str]  # as other plugins know them from pytest's own items

    def take(self, test: FoundTest, file: ForeignFile) -> None:
        """Stand for this test of the file."""
        self.test, self.file, self.fixturenames = test, file, list(test.fixtures)
        for name, args, kwargs in test.markers:
            mark = pytest.Mark(name, args, kwargs, _ispytest=True)
            self.add_marker(pytest.MarkDecorator(mark, _ispytest=True))

    def added_markers(self) -> list[pytest.Mark]:
        """Markers that hooks of this process added, as a conftest.py that skips what is slow."""
        return [mark for mark in self.own_markers if _plain(mark) not in self.test.markers]

    def runtest(self) -> None:
        raise RuntimeError("a test of an unmodified file runs in its own process only")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.test.line, ".".join(self.test.names)


class _TestGroup(pytest.Collector):
    """A class of tests."""

    children: list[pytest.Item | pytest.Collector]

    def collect(self) -> Sequence[pytest.Item | pytest.Collector]:
        return self.children


class ForeignFile(pytest.File):
    """A test file that only forked processes import."""

    case: Case  # of its import
    isolator: Any

    def collect(self) -> Sequence[pytest.Item | pytest.Collector]:
        """Return the tests; raise CollectError with the import's own error or stack."""
        roots: list[pytest.Item | pytest.Collector] = []
        groups: dict[tuple[str, ...], _TestGroup] = {}
        for test in self.isolator.collect(self):
            parent: pytest.Collector = self
            siblings = roots
            for depth in range(1, len(test.names)):
                path = test.names[:depth]
                if path not in groups:
                    groups[path] = _TestGroup.from_parent(parent, name=path[-1])
                    groups[path].children = []
                    siblings.append(groups[path])
                parent, siblings = groups[path], groups[path].children
            item = ForeignItem.from_parent(parent, name=test.names[-1])
            item.take(test, self)
            siblings.append(item)
        return roots


def import_items(file: ForeignFile) -> list[pytest.Item]:
    """Import the file here and collect its tests; raises what pytest reports of a file that can't
    be collected: CollectError, or Skipped.
    """
    module = pytest.Module.from_parent(file.parent, path=file.path)
    try:
        report = collect_one_node(module)
    except SystemExit as error:
        raise pytest.Collector.CollectError(_exit_text(error, file.path)) from error
    if report.failed:
        raise pytest.Collector.CollectError(str(report.longrepr))
    if report.skipped:
        assert isinstance(report.longrepr, tuple)
        pytest.skip(report.longrepr[2].removeprefix("Skipped: "), allow_module_level=True)
    return list(file.session.genitems(module))


def _exit_text(error: SystemExit, path: Path) -> str:
    """Describe where the import of ``path`` ended its process, as a script does that parses its
    arguments.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = dropwhile(lambda frame: frame.filename != str(path), frames)
    return (
        f"its import ended the process by sys.exit({error.code!r}); run a script without tests by "
        f"'xla-harness run'\n{''.join(traceback.format_list(list(own)))}"
    )


def describe(items: Sequence[pytest.Item]) -> str:
    """Return the tests as text, which ``found`` reads in the parent process."""
    tests = [
        (
            _names(item),
            item.location[1] or 0,
            tuple(map(_plain, item.iter_markers())),
            tuple(getattr(item, "fixturenames", ())),
        )
        for item in items
    ]
    return base64.b64encode(marshal.dumps(tests)).decode()


def found(text: str) -> list[FoundTest]:
    """Return the tests that ``describe`` has written."""
    return [FoundTest(*test) for test in marshal.loads(base64.b64decode(text))]  # noqa: S302  # our own


def _names(item: pytest.Item) -> tuple[str, ...]:
    chain = item.listchain()
    (module,) = (n for n, node in enumerate(chain) if isinstance(node, pytest.Module))
    return tuple(node.name for node in chain[module + 1 :])


def _plain(mark: pytest.Mark) -> Marker:
    """Return the marker, without arguments that are not plain data.

    Reading any other object in the parent could import the file that it comes from.
    """
    marker: Marker = mark.name, mark.args, dict(mark.kwargs)
    try:
        marshal.dumps(marker)
    except ValueError:
        return mark.name, (), {}
    return marker


class MainBlock:
    """Before a file's first test in this process, do what the file does when it is a script."""

    def __init__(self) -> None:
        self._done: set[ModuleType] = set()

    @pytest.hookimpl
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        module = getattr(item, "module", None)
        if module is not None and module not in self._done:
            self._done.add(module)
            run_main_block(module)


def set_id(item: pytest.Item, nodeid: str) -> None:
    """Have an item be another one to all who know it by its id."""
    if hasattr(item, "_nodeid"):
        item._nodeid = nodeid
    else:  # since pytest 9.2
        item._id = type(item.id).parse(nodeid)


def materialize(item: ForeignItem) -> pytest.Item:
    """Import the test in this process and return it; raise LookupError if it is gone."""
    manager = item.config.pluginmanager
    if not manager.has_plugin(_MAIN_BLOCK):
        manager.register(MainBlock(), _MAIN_BLOCK)
    for real in import_items(item.file):
        if _names(real) == item.test.names:
            for mark in item.added_markers():
                real.add_marker(pytest.MarkDecorator(mark, _ispytest=True))
            if real.nodeid != item.nodeid:  # pytest-xdist adds a group to it before pytest 9.2
                set_id(real, item.nodeid)
            real.stash._storage.update(item.stash._storage)
            return real
    raise LookupError(f"{item.nodeid}: collected once, but not in the process that should run it")
