"""Folders for tests that run a pytest of their own, and the order of this run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.drift import GOOD, NO_DOUBLE, NO_HALF, WITH_NEW, Drift
from support.drift import project as drift_project
from support.project import Project

# Each of a thousand processes would compile the harness anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with cases come first.

    Cases are forked from this process, and the libraries that other tests import here start threads
    (DuckDB and PyArrow do), after which nothing can be forked.
    """
    forked = {item.path for item in items if item.get_closest_marker("lanes")}
    items.sort(key=lambda item: item.path not in forked)


@pytest.fixture(scope="session", autouse=True)
def _coverage() -> Iterator[dict[str, str]]:
    """What would have each process that a test starts measured, taken out of the environment.

    A measured process costs 0.2 s more, and a measured run inside of a test three times as much.
    """
    found = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("COVERAGE_")}
    yield found
    os.environ.update(found)


@pytest.fixture(scope="module", autouse=True)
def _measured(request: pytest.FixtureRequest, _coverage: dict[str, str]) -> Iterator[None]:
    """Measure the processes that the tests of a module start, if it says so."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "MEASURES_COVERAGE", False):
            for name, value in _coverage.items():
                patch.setenv(name, value)
        yield


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A folder for one test."""
    return Project(tmp_path)


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A folder for a whole module, whose tests look at one run."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="session")
def environments_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for environments, as they take seconds to make."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def drift(tmp_path: Path, environments_cache: Path) -> Drift:
    """A project of stacks for one test."""
    return drift_project(tmp_path, environments_cache)


@pytest.fixture(scope="module")
def shared_drift(tmp_path_factory: pytest.TempPathFactory, environments_cache: Path) -> Drift:
    """A project of stacks for a whole module: 1 and 2 work, 3 and 4 do not
    double, 5 does not halve, 6 is good and has new()."""
    made = drift_project(tmp_path_factory.mktemp("drift"), environments_cache)
    for name, code in (("1", GOOD), ("2", GOOD), ("3", NO_DOUBLE), ("4", NO_DOUBLE)):
        made.stack(name, code)
    made.stack("5", NO_HALF)
    made.stack("6", WITH_NEW)
    return made
