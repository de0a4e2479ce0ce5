"""The pytest plugin of ``survive``: notes how each test ends and what its process has loaded.

It is copied beside each run, into environments that lack the harness, and works under any pytest:
it imports only the standard library. It appends lines of JSON to files in ``$XLA_HARNESS_SURVIVE``.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

FOLDER = "XLA_HARNESS_SURVIVE"
SETTINGS, ENDINGS, LOADED = "settings.json", "endings.jsonl", "loaded.jsonl"
_MOST_TEXT = 20_000  # characters of a failure, its end


def _append(name: str, **data: object) -> None:
    """Append a line at once: workers and forked processes write to the same file."""
    path = Path(os.environ[FOLDER], name)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, f"{json.dumps(data)}\n".encode())
    finally:
        os.close(file)


def _modules(distribution: str) -> set[str]:
    """Return the top-level modules of an installed package."""
    names = {distribution.replace("-", "_")}  # all that is known of an editable one
    try:
        files = metadata.distribution(distribution).files or []
    except metadata.PackageNotFoundError:
        return names
    for file in files:
        name, _, suffix = file.parts[0].partition(".")
        if name.isidentifier() and (not suffix if len(file.parts) > 1 else "so" in suffix + "py"):
            names.add(name)
    return names


class Recorder:
    """Plugin object, in the process that reports and in each worker of pytest-xdist."""

    def __init__(self, config: Any) -> None:
        text = Path(os.environ[FOLDER], SETTINGS).read_text(encoding="utf-8")
        settings = json.loads(text)
        self._config = config
        self._only, self._done = settings["only"], set(settings["done"])
        self._modules = {name: sorted(_modules(name)) for name in settings["packages"]}
        self._noted: tuple[int, object] = (0, None)
        self._ran = False
        atexit.register(self._note)  # also where conftest.py can't be imported

    @property
    def _reports(self) -> bool:
        """Return whether this process reports; a worker of pytest-xdist is told so late."""
        return not hasattr(self._config, "workerinput")

    def _note(self) -> None:
        """Note which of the packages this process has loaded, whenever that has changed."""
        loaded = {
            package: [str(getattr(module, "__version__", "")), _place(module)]
            for package, names in self._modules.items()
            for module in [sys.modules[name] for name in names if name in sys.modules][:1]
        }
        if (loaded or self._ran) and self._noted != (os.getpid(), loaded):
            self._noted = os.getpid(), loaded
            _append(LOADED, pid=os.getpid(), loaded=loaded)

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


def _place(module: Any) -> str:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return next((str(place) for place in places if place), "")


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
