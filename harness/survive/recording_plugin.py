"""The pytest plugin of ``survive``: notes how each test ends and what its process has loaded.

It is copied beside each run, into environments that lack the harness, and works under any pytest:
it imports only the standard library. It appends lines of JSON to files in ``$XLA_HARNESS_SURVIVE``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "XLA_HARNESS_SURVIVE"
SETTINGS, ENDINGS, LOADED = "settings.json", "endings.jsonl", "loaded.jsonl"
ACCELERATORS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/vfio/")
_MOST_TEXT = 20_000  # characters of a failure, its end


def _append(name: str, **data: object) -> None:
    """Append a line at once: workers and forked processes write to the same file."""
    path = Path(os.environ[FOLDER], name)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, f"{json.dumps(data)}\n".encode())
    finally:
        os.close(file)


def _modules() -> dict[str, tuple[str, str]]:
    """Return version and place of each top-level module that is not Python's own."""
    loaded = {}
    for name, module in [*sys.modules.items()]:
        if "." not in name and name not in sys.stdlib_module_names:
            values = getattr(module, "__dict__", {})  # no __getattr__ of a lazy module
            places = [values.get("__file__"), *(values.get("__path__") or ())]
            place = next((str(place) for place in places if place), "")
            loaded[name] = str(values.get("__version__", "")), place
    return loaded


def _platform() -> str:
    """Return the platform on which jax computes by default; "" before it computes anything."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    name = str(getattr(getattr(bridge, "_default_backend", None), "platform", ""))
    return "gpu" if name in ("cuda", "rocm") else name


def _devices() -> Iterator[str]:
    """Yield the accelerators' files that this process has open, whatever framework opened them."""
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
            if (path := str(descriptor.readlink())).startswith(ACCELERATORS):
                yield path


class Recorder:
    """Plugin object, in the process that reports and in each worker of pytest-xdist."""

    def __init__(self, config: Any) -> None:
        settings = json.loads(Path(os.environ[FOLDER], SETTINGS).read_text(encoding="utf-8"))
        self._config = config
        self._only, self._done = settings["only"], set(settings["done"])
        self._noted: dict[str, object] = {}
        self._ran = False
        self._platforms: set[str] = set()
        self._devices: set[str] = set()
        atexit.register(self._note)  # also where conftest.py can't be imported

    @property
    def _reports(self) -> bool:
        """Return whether this process reports; a worker of pytest-xdist is told so late."""
        return not hasattr(self._config, "workerinput")

    def _note(self) -> None:
        """Note what this process has loaded and computes on, whenever that has changed."""
        self._platforms |= {_platform()} - {""}  # jax forgets it at its exit
        self._devices.update(_devices())
        noted = {
            "pid": os.getpid(),
            "ran": self._ran,
            "modules": _modules(),
            "platforms": sorted(self._platforms),
            "devices": sorted(self._devices),
        }
        if noted != self._noted:
            self._noted = noted
            _append(LOADED, **noted)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Keep the tests to run again, or those that had not ended when a process died."""
        # With --dist loadgroup, pytest-xdist adds @GROUP to the id after this.
        only = {text for each in self._only or () for text in (each, each.rpartition("@")[0])}
        kept = [
            item
            for item in items
            if item.nodeid not in self._done and (self._only is None or item.nodeid in only)
        ]
        if len(kept) < len(items):
            kept_ids = {id(item) for item in kept}
            config.hook.pytest_deselected(items=[i for i in items if id(i) not in kept_ids])
            items[:] = kept

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._reports:
            _append(ENDINGS, start=nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self) -> None:
        """Note it in the test's process, which may be a fork that never ends the session."""
        self._ran = True
        self._note()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._reports:
            xfail = getattr(report, "wasxfail", None)
            _append(
                ENDINGS,
                id=report.nodeid,
                when=report.when,
                outcome=report.outcome,
                seconds=report.duration,
                xfail=xfail is not None,
                **_failure(report),
            )

    def pytest_collectreport(self, report: Any) -> None:
        if self._reports and report.outcome != "passed":
            _append(ENDINGS, file=report.nodeid, outcome=report.outcome, **_failure(report))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._note()
        if self._reports:
            _append(ENDINGS, exit=int(exitstatus))


def _failure(report: Any) -> dict[str, str]:
    if report.outcome == "passed":
        return {}
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):  # file, line and reason of a skip
        return {"message": str(longrepr[2]), "text": ""}
    crash = getattr(longrepr, "reprcrash", None)
    text = str(longrepr or "")[-_MOST_TEXT:]
    return {"message": crash.message if crash is not None else "", "text": text}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Register the recorder before any conftest.py is imported."""
    early_config.pluginmanager.register(Recorder(early_config), "xla-harness-survive")
