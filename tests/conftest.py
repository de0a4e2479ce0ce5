"""Folders for tests that run a pytest of their own, and the order of this run."""

from __future__ import annotations

import os
import posix
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.drift import GOOD, NO_DOUBLE, NO_HALF, WITH_NEW, Drift
from support.drift import project as drift_project
from support.project import Project

# Each of a thousand processes would compile the harness anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# torch_xla, imported for cases of this run, would name a platform to all that tests start.
os.environ["PJRT_SELECT_DEFAULT_DEVICE"] = "0"

# A shell's background job, as these tests may be, ignores SIGINT, and so would all that it starts.
# A handler is not inherited, and costs no fork of this process, as preexec_fn would: 60 ms each.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)


# A busy machine is not a fault of the code: how long an example takes decides nothing.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")

# A worker of xdist takes whole files: one of these at the end would keep the others waiting.
LONGEST = (
    "test_matrix.py",
    "test_repro.py",
    "test_history_faults.py",
    "test_qualify.py",
    "test_dashboard_browser.py",
    "test_foreign.py",
    "test_tpu_aot.py",
    "test_stacks_environments.py",
    "test_expectations.py",
    "test_workflows.py",
    "test_package.py",
    "test_own_nights.py",
    "test_docs_commands.py",
    "test_jobset_flow.py",
    "test_sensitivity.py",
    "test_other_compilers.py",
    "test_launchers.py",
)


MOST_WORKERS = 16

# A pytest that a test starts in this project leaves the other cores to the other tests.
os.environ["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "0"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """A worker takes whole files, whose tests share what they set up, in the order of below."""
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist, config.option.loadscopereorder = "loadfile", False


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Five workers keep two cores busy: some tests wait. More workers than files would idle."""
    files = len(config.args) if all(Path(path).is_file() for path in config.args) else MOST_WORKERS
    workers = min(files, MOST_WORKERS, 5 * len(os.sched_getaffinity(0)) // 2)
    return workers if workers > 1 else 0


def pytest_configure(config: pytest.Config) -> None:
    marker = "measures_coverage: of the processes that the test starts too, which takes CPU"
    config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with cases come first, then those that take longest.

    Cases are forked from this process, and the libraries that other tests import here start threads
    (DuckDB and PyArrow do), after which nothing can be forked.
    """
    forked = {item.path for item in items if item.get_closest_marker("lanes")}
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda i: (i.path not in forked, places.get(i.path.name, len(LONGEST))))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure the processes that a test starts or forks only if it is marked so.

    A measured process takes 0.2 s more, and a run of pytest in it twice as long.
    """
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("measures_coverage") is None:
            for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
                patch.delenv(name)
            if coverage := sys.modules.get("coverage"):
                # What coverage's patches "fork" and "_exit" do to a child of this process.
                patch.setattr(coverage.Coverage, "current", lambda: None)
                patch.setattr(os, "_exit", posix._exit)
        return (yield)


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
