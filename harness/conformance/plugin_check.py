"""What a check is, what it answers, and the registry of all checks.

A check is a function of a module that ``LEVELS`` names. Its docstring's first line is its title;
its id is the level, the module and the function, such as ``c_api/buffer/deleted_twice``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
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
    """A level: its number, its folder, what it is about, and its modules in the order they run."""

    number: int
    folder: str
    about: str
    modules: tuple[str, ...]


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


PLANTED = "(planted)"  # the step that says that a planted fault has changed the one before it
_MARK = "_is_conformance_check"


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a function as a check of its module."""
    setattr(function, _MARK, {"": ()})
    return function


def checks(parameters: Mapping[str, tuple[Any, ...]]) -> Callable[..., Callable[..., None]]:
    """Mark a function as one check for each name, with the arguments that it stands for."""

    def mark(function: Callable[..., None]) -> Callable[..., None]:
        setattr(function, _MARK, dict(parameters))
        return function

    return mark


@cache
def all_checks() -> Mapping[str, PluginCheck]:
    """Return the checks of all levels by id, in the order in which they run."""
    return {each.id: each for level in LEVELS for each in _of(level)}


def _of(level: Level) -> Iterator[PluginCheck]:
    for name in level.modules:
        module = import_module(f"harness.conformance.{level.folder}.{name}")
        for function in vars(module).values():
            if getattr(function, "__module__", "") != module.__name__:
                continue
            for parameter, arguments in getattr(function, _MARK, {}).items():
                own = f"{function.__name__}[{parameter}]" if parameter else function.__name__
                area = name.removesuffix("_checks")
                title = (function.__doc__ or "").partition("\n")[0].rstrip(".")
                yield PluginCheck(
                    level.number, f"{level.folder}/{area}/{own}", title, function, arguments
                )


def expect(condition: object, what_is_wrong: str) -> None:
    """Raise NonconformanceError with those words unless the condition holds."""
    if not condition:
        raise NonconformanceError(what_is_wrong)
