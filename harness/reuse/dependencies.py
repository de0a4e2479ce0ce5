"""What a case's result depends on, and whether any of it has changed."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.isolation.garbage import importing
from harness.junit.properties import STACK_VARIABLE
from harness.matrix.home import deciding_variables, sources
from harness.matrix.project_imports import ProjectImports
from harness.reuse.digests import PACKAGES, PROJECT, Digests
from harness.reuse.recorder import FORKED, LISTED, READ, WROTE, native_libraries
from harness.reuse.result_store import ResultStore
from harness.session.fixtures import CASE, EXPECTATION

# Options that choose cases, share them out or show them. Any other one, of any plugin or
# conftest.py, may decide what a case does.
_CHOOSE_OR_SHOW = frozenset(
    {
        *("file_or_dir", "keyword", "markexpr", "deselect", "cases", "unless_cases", "first"),
        *("lane", "unless_lane", "topology", "shard", "quick", "expectations", "deadline"),
        *("reuse", "reuse_check", "reuse_seed", "xmlpath", "verbose", "color", "full"),
        *("numprocesses", "maxprocesses", "maxschedchunk", "tx", "dist", "loadgroup"),
        *("testrunuid", "basetemp"),
        *("capture", "usepdb", "looponfail", "failedfirst", "lf", "tbstyle", "showcapture"),
    }
)
SETS = "sets"  # kind of the stored objects that many records have in common


class Dependencies:
    """Dependencies of the cases of one process, which has imported what they have in common."""

    def __init__(
        self, config: pytest.Config, environment: Mapping[str, str], store: ResultStore
    ) -> None:
        self._config = config
        self._environment = environment
        self._store = store
        self._project = config.rootpath.resolve()
        self._digests = Digests(self._project)
        self._imports = ProjectImports(self._project, self._digests.is_of_project)
        self._options = dict(sorted(vars(config.option).items()))
        self._collected: dict[str, str] = {}
        self._set_names: dict[int, str] = {}  # by the identity of a set, which is kept
        self._change_in = cache(self._change_in_set)
        self._with_imports = cache(self._with_imports_of)

    def collected(self, lines: Sequence[str]) -> None:
        """Remember the project's data that was read while its tests were imported."""
        paths = (line.partition(" ")[2] for line in lines if line.startswith((READ, LISTED)))
        names = {self._digests.name_of(path) for path in paths if not path.endswith(".py")}
        self._collected = self._digested(name for name in names if name.startswith(PROJECT))

    def key(self, item: pytest.Item) -> str:
        """Return the name of an item's record: a digest of what is known before it runs."""
        case, expectation = item.stash[CASE], item.stash[EXPECTATION]
        expected = expectation and (
            *(expectation.cause, expectation.reason, expectation.outcome, expectation.signature),
        )
        return _digest([case, expected, self._common])

    def record(self, item: pytest.Item, used: Sequence[str]) -> dict[str, Any]:
        """Return what the item's result depends on, from the records of its processes."""
        paths: dict[str, list[str]] = {}
        for line in used:
            act, _, path = line.partition(" ")
            paths.setdefault(act, []).append(path)
        own = {*paths.get(READ, ()), *paths.get(LISTED, ())} - {*paths.get(WROTE, ())}
        modules = frozenset(path for path in own if path.endswith(".py"))
        names = {self._digests.name_of(path) for path in own}
        if FORKED in paths:  # a fork may load libraries that this record does not have
            names.add(PACKAGES)
        parts = (self._loaded, self._collected, self._imported(item.path, modules))
        return {
            "sets": [self._set_name(part) for part in parts],
            "own": self._digested(names.difference(*parts)),
        }

    def change(self, record: Mapping[str, Any]) -> str:
        """Return the name of a file that has changed since the record was made; "" if none has."""
        for part in record["sets"]:
            if change := self._change_in(part):
                return change
        return self._difference(record["own"])

    def _change_in_set(self, name: str) -> str:
        stored = self._store.read(SETS, name)
        return "a lost part of the store" if stored is None else self._difference(stored)

    def _difference(self, digests: Mapping[str, str]) -> str:
        changed = (name for name, digest in digests.items() if self._digests.of(name) != digest)
        return next(changed, "")

    def _set_name(self, digests: dict[str, str]) -> str:
        """Write the set once, and return its name in the store."""
        if id(digests) not in self._set_names:
            name = _digest(sorted(digests.items()))
            self._store.write(SETS, name, digests)
            self._set_names[id(digests)] = name
        return self._set_names[id(digests)]

    def _digested(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self._digests.of(name) for name in names if name}

    def _imported(self, path: Path, modules: frozenset[str]) -> dict[str, str]:
        """Return the project's files that a test file, its conftest.py and plugins import."""
        own = (Path(module) for module in modules)
        files = [path.resolve(), *self._plugins, *filter(self._digests.is_of_project, own)]
        return self._with_imports(frozenset(files))

    def _with_imports_of(self, files: frozenset[Path]) -> dict[str, str]:
        names = (self._digests.name_of(str(path)) for path in self._imports.all_of(files))
        return self._digested(names)

    @cached_property
    def _plugins(self) -> list[Path]:
        """The project's files that are pytest's plugins, and its configuration."""
        plugins = self._config.pluginmanager.get_plugins()
        files = [getattr(plugin, "__file__", None) for plugin in plugins]
        paths = [Path(file).resolve() for file in [*files, self._config.inipath] if file]
        return [path for path in paths if self._digests.is_of_project(path)]

    @cached_property
    def _loaded(self) -> dict[str, str]:
        """The installed files that every case's process has inherited from this one."""
        with importing():  # it stays, and each case's process would copy it
            files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
            names = map(self._digests.name_of, [*filter(None, files), *native_libraries()])
            return self._digested(name for name in names if not name.startswith(PROJECT))

    @cached_property
    def _common(self) -> list[object]:
        """What all cases of this process have in common besides files."""
        return [
            self._environment.get(STACK_VARIABLE, ""),
            deciding_variables(self._environment),
            {k: repr(v) for k, v in self._options.items() if k not in _CHOOSE_OR_SHOW},
            self._digests.package_names,
            sys.version,
            platform.machine(),
            processor_features(),
            harness_digest(),
        ]


def harness_digest() -> str:
    """Return a digest of the harness's own files, its plugins for PJRT included."""
    folder = Path(harness.__file__).parent
    contents = [(str(path.relative_to(folder)), path.read_bytes()) for path in sources(folder)]
    return _digest([(name, hashlib.sha256(content).hexdigest()) for name, content in contents])


def processor_features() -> str:
    """Return what the processor can do: compilers choose instructions by it, and so roundings."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=repr).encode()).hexdigest()
