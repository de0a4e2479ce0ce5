"""The pytest plugin: hands pytest's hooks to the modules that do the work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.expectations import Expectations
from harness.expectations.causes import read_findings
from harness.lanes import at_import
from harness.reuse import case_reuse
from harness.session import in_case, options, written, xdist_workers
from harness.session.closing import Closing
from harness.session.collection import Collection
from harness.session.fixtures import (
    host_work,
    start_runtime,
    topology,
    tpu_events,
    xla_compiler,
    xla_target,
)
from harness.session.imports import Imports
from harness.session.logs import LogFile, TraceFilter
from harness.session.markers import MARKERS
from harness.session.running import Running
from harness.session.terminal import Terminal
from harness.verdicts.upstream import Row

__all__ = [
    "host_work",
    "start_runtime",
    "topology",
    "tpu_events",
    "xla_compiler",
    "xla_target",
]  # fixtures, found here by pytest
_TERMINAL = pytest.StashKey[Terminal]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    xdist_workers.choose(early_config)
    # OpenBLAS starts its threads when NumPy is imported, and a fork would lose them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # So does the allocator of PyArrow.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # The same for torch 2.7 and 2.8, whose inductor starts its compile workers.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # OpenMP's threads would wait in a loop, on the cores that other workers' cases need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    given = (getattr(early_config.known_args_namespace, "lane", None) or "").split(",")
    lanes = [name for name in given if name]
    if lanes:
        # A conftest that imports torch_xla names no platform; torch_xla would.
        os.environ.setdefault("PJRT_SELECT_DEFAULT_DEVICE", "0")
    os.environ.update(at_import.environment(lanes))
    yield


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    try:
        settings = options.Settings.of(config)
        known = _known_versions(settings.stacks)
        findings = read_findings(settings.findings)
        expectations = Expectations.load_optional(settings.expectations, known, findings)
        config.stash[_TERMINAL] = Terminal(config, settings.in_process, _rows(settings.upstream))
        reusing = case_reuse.plugins(config, settings.in_process, settings.environment)
    except BadInputError as error:
        pytest.exit(f"xla-harness: {error}", returncode=2)
    if settings.first_cases:
        xdist_workers.keep_order(config)
    running = Running(config, settings)
    imports = Imports(settings, running)
    collection = Collection(config, settings, expectations, imports)
    closing = Closing(config, settings)
    logs = TraceFilter(), LogFile()
    for plugin in (running, imports, collection, in_case, closing, *logs, written, *reusing):
        config.pluginmanager.register(plugin)


def _known_versions(folder: Path | None) -> list[dict[str, str]]:
    if folder is None:
        return []
    from harness.stacks.catalogue import known_versions

    return known_versions(folder)


def _rows(path: Path | None) -> tuple[Row, ...]:
    if path is None:
        return ()
    from harness.verdicts.upstream_file import load

    return load(path)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    # pytest's terminal reporter is registered after every plugin was configured.
    manager = session.config.pluginmanager
    reporter = manager.getplugin("terminalreporter")
    if reporter is not None:  # a pytest-xdist worker has none
        terminal = session.config.stash[_TERMINAL]
        terminal.attach(reporter)
        manager.register(terminal)
