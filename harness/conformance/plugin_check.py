"""What a check is, what it answers, and the registry of all checks.

A check is a function of a module that ``LEVELS`` names. Its docstring's first line is its title;
its id is the level, the module and the function, such as ``c_api/buffer/deleted_twice``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple


class Conformity(StrEnum):
    """What a check says of a plugin."""

    CONFORMS = "conforms"
    FAILS = "fails"
    UNSUPPORTED = "unsupported"  # the plugin lacks what it may lack: counted, and no failure
    NOT_MEASURABLE = "not measurable here"


class UnsupportedError(Exception):
    """The plugin does not offer something that a plugin may leave out."""


class NotMeasurableError(Exception):
    """This machine, or what the plugin has here, gives no way to look."""


class NonconformanceError(AssertionError):
    """The plugin does something else than it has to."""


class Level(NamedTuple):
    """A level: its number, its folder, what it is about, and its modules in the order they run.

    ``packages`` are those that its checks import, and that other levels do without.
    """

    number: int
    folder: str
    about: str
    modules: tuple[str, ...]
    packages: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """The first of its packages that is not installed, or ""."""
        return next((name for name in self.packages if find_spec(name) is None), "")


LEVELS = (
    Level(
        0,
        "c_api",
        "the C API",
        (
            *("plugin_checks", "error_checks", "event_checks", "client_checks", "device_checks"),
            *("buffer_checks", "transfer_checks", "executable_checks", "execution_checks"),
            *("topology_checks", "extension_checks", "thread_checks", "struct_sizes"),
        ),
    ),
    Level(
        1,
        "operators",
        "StableHLO's operators",
        (
            "elementwise_checks",
            "choice_checks",
            "movement_checks",
            "reduction_checks",
            "indexing_checks",
            "structure_checks",
        ),
        ("numpy", "ml_dtypes"),
    ),
    Level(
        2,
        "jax_programs",
        "JAX programs",
        (
            *("client_in_jax_checks", "transformation_checks", "control_flow_checks"),
            *("random_bit_checks", "array_checks", "number_type_checks", "call_checks"),
        ),
    ),
    # Its other answers are cases of the suites: harness.conformance.distribution.suite_run.
    Level(3, "distribution", "distribution", ("process_checks",)),
)


@dataclass(frozen=True)
class PluginCheck:
    """One question to a plugin."""

    level: int
    id: str
    title: str
    function: Callable[..., None]
    arguments: tuple[Any, ...] = ()

    def __call__(self, subject: Any) -> None:
        """Ask ``subject``; raises one of the errors above, or whatever went wrong."""
        self.function(subject, *self.arguments)


PROGRAM = "program "  # begins a line with what a check is about to compile, as JSON
PLANTED = "(planted)"  # the step that says that a planted fault has changed the one before it
_MARK = "_is_conformance_check"


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a function as a check of its module."""
    setattr(function, _MARK, {function.__name__: ()})
    return function


def checks(parameters: Mapping[str, tuple[Any, ...]]) -> Callable[..., Callable[..., None]]:
    """Mark a function as one check for each name, with the arguments that it stands for."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        names = {f"{function.__name__}[{name}]": each for name, each in parameters.items()}
        return named_checks(names)(function)

    return mark


def named_checks(parameters: Mapping[str, tuple[Any, ...]]) -> Callable[..., Callable[..., None]]:
    """Mark a function as the checks of these names, each with the arguments that it stands for."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        setattr(function, _MARK, dict(parameters))
        return function

    return mark


def all_checks() -> Mapping[str, PluginCheck]:
    """Return the checks of all levels that can run here by id, in the order in which they run."""
    return {id_: each for level in LEVELS if not level.missing for id_, each in of(level).items()}


def named(id_: str) -> PluginCheck:
    """Return a check by its id; imports no other level than its own."""
    return of(level_of(id_))[id_]


def has(pattern: str, id_: str) -> bool:
    """Return whether a pattern has an id, whose brackets are no pattern if it is that id."""
    return id_ == pattern or fnmatch.fnmatchcase(id_, pattern)


def level_of(id_: str) -> Level:
    """Return the level of the check with this id."""
    return next(level for level in LEVELS if level.folder == id_.partition("/")[0])


@cache
def of(level: Level) -> Mapping[str, PluginCheck]:
    """Return the checks of a level by id, in the order in which they run."""
    return {each.id: each for each in _of(level)}


def _of(level: Level) -> Iterator[PluginCheck]:
    for name in level.modules:
        module = import_module(f"harness.conformance.{level.folder}.{name}")
        for function in vars(module).values():
            if getattr(function, "__module__", "") != module.__name__:
                continue
            for own, arguments in getattr(function, _MARK, {}).items():
                area = name.removesuffix("_checks")
                title = (function.__doc__ or "").partition("\n")[0].rstrip(".")
                yield PluginCheck(
                    level.number, f"{level.folder}/{area}/{own}", title, function, arguments
                )


def expect(condition: object, what_is_wrong: str) -> None:
    """Raise NonconformanceError with those words unless the condition holds."""
    if not condition:
        raise NonconformanceError(what_is_wrong)
