"""Run a JAX program on a plugin, and compare what it yields."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import CodeType
from typing import Any

from harness.conformance.jax_programs.agreement import agree
from harness.conformance.jax_programs.late import IMPORTS, jax
from harness.conformance.plugin_check import (
    NonconformanceError,
    NotMeasurableError,
    UnsupportedError,
    check,
)
from harness.conformance.plugin_file import NO_FILE

Program = Callable[[], Iterator[tuple[Any, Any]]]
_FAMILY = "harness.conformance."  # whose functions a script needs, too
_LACKS = re.compile(
    r"unimplemented|not (yet )?(implemented|supported|available)|(does not|doesn't) support"
    r"|unsupported|could not find|failed to find|no (.* )?registered|cannot be used as",
    re.IGNORECASE,
)

# What JAX calls a process's place in its job, among a client's options.
_PLACE = re.compile("node_id|num_nodes")
# A plugin that takes no struct of an older or newer caller's size cannot be asked by this JAX.
_REFUSES = re.compile(r"Unexpected PJRT_\w+ size|PJRT API version", re.IGNORECASE)


@dataclass(frozen=True)
class JaxSubject:
    """JAX with a plugin in place of its own devices.

    ``library`` is the plugin's file, and ``missing`` why it has no client here, or "". ``place`` is
    the address of the job's coordinator, how many processes the job has, and which one this is.
    """

    name: str
    library: str
    options: Mapping[str, Any]
    missing: str
    note_program: Callable[[str], None] = lambda _: None
    place: tuple[str, int, int] | None = None

    def start(self) -> Any:
        """Return JAX's client of the plugin; raises whatever refuses it.

        Raises NotMeasurableError without a client or without JAX.
        """
        if self.missing:
            raise NotMeasurableError(f"no client: {self.missing}")
        if find_spec("jax") is None:
            raise NotMeasurableError("JAX is not installed")
        if self.place:
            jax.distributed.initialize(*self.place)
        if self.library == str(NO_FILE):
            jax.config.update("jax_platforms", self.name)
            return jax.devices(self.name)[0].client
        from jax._src import xla_bridge

        jax.config.update("jax_platforms", f"{self.name},cpu")
        # JAX would register what this variable names, too: the same name twice is an error.
        os.environ.pop("PJRT_NAMES_AND_LIBRARY_PATHS", None)
        # A package that is installed registers its plugin itself, with more than the library.
        if not entry_points(group="jax_plugins", name=self.name):
            xla_bridge.register_plugin(
                self.name, library_path=self.library, options=dict(self.options)
            )
        return jax.devices(self.name)[0].client


def program(devices: int = 1, optional: str = "") -> Callable[[Program], Callable[..., None]]:
    """Mark a program as a check.

    Args:
        devices: how many it needs.
        optional: what of it a plugin may lack, in words; "" for nothing.
    """

    def mark(function: Program) -> Callable[..., None]:
        @functools.wraps(function)
        def run(subject: JaxSubject) -> None:
            subject.note_program(source(function))
            client = _client(subject)
            if client.local_device_count() < devices:
                raise NotMeasurableError(
                    f"needs {devices} devices, here {client.local_device_count()}"
                )
            try:
                used = _compare(function, client)
            except Exception as error:
                raise _judged(error, optional) from error
            if not used:
                raise NonconformanceError("no result was on the plugin's devices")

        return check(run)

    return mark


def _client(subject: JaxSubject) -> Any:
    try:
        client = subject.start()
    except NotMeasurableError:
        raise
    except Exception as error:
        if subject.place and _PLACE.search(str(error)):
            raise UnsupportedError(f"a job of several processes: {_words(error)}") from error
        raise _refused(error) from error
    if subject.place and jax.process_count() == 1:
        raise UnsupportedError("a job of several processes: its devices are those of one")
    return client


def _judged(error: Exception, optional: str) -> Exception:
    """Return what an error of a program says of the plugin."""
    text = f"{type(error).__name__}: {error}"
    if _REFUSES.search(text):
        return _refused(error)
    if isinstance(error, AttributeError | ImportError) and re.search(r"\bjax\b.* has no ", text):
        return NotMeasurableError(f"JAX {jax.__version__}: {error}")
    if optional and not isinstance(error, AssertionError) and _LACKS.search(text):
        return UnsupportedError(f"{optional}: {_words(error)}")
    return NonconformanceError(_words(error))


def _refused(error: BaseException) -> NotMeasurableError:
    return NotMeasurableError(f"refused by JAX {jax.__version__}: {_words(error)}")


def _compare(function: Program, client: Any) -> bool:
    """Compare all pairs; return whether an array of the plugin's was among them."""
    used = False
    for actual, expected in function():
        for leaf in jax.tree.leaves(actual):
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                used = used or all(device.client is client for device in leaf.devices())
        agree(actual, expected)
    return used


def source(function: Callable[..., Any]) -> str:
    """Return a script with a program, the functions that it calls, and the comparison."""
    functions = dict[str, Callable[..., Any]]()
    _collect(function, functions)
    _collect(agree, functions)
    texts = [inspect.getsource(each).partition("def ")[2] for each in functions.values()]
    call = f"for actual, expected in {function.__name__}():\n    agree(actual, expected)\n"
    return "\n\n".join([IMPORTS, *(f"def {text}" for text in texts), call])


def _collect(function: Callable[..., Any], functions: dict[str, Callable[..., Any]]) -> None:
    """Add a function, and those of this package that it names."""
    functions[function.__name__] = function
    for name in _names(function.__code__):
        other: Any = getattr(inspect.getmodule(function), name, None)
        own = inspect.isfunction(other) and other.__module__.startswith(_FAMILY)
        if own and name not in functions:
            _collect(other, functions)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _words(error: BaseException) -> str:
    """Return what an error says, in few lines."""
    text = " ".join(line.strip() for line in str(error).strip().splitlines() if line.strip())
    name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{name}{text[:600]}"
