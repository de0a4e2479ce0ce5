"""A plugin by its name and file, and what is wrong with the file before anything is asked of it."""

from __future__ import annotations

import json
import platform
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness.errors import BadInputError, nearest

GROUP = "jax_plugins"  # the entry points of installed plugins
_NAME = re.compile(r"[A-Za-z0-9_]+")
_ELF, _MACHO = b"\x7fELF", (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_MACHINES = {  # e_machine of ELF, and what Python calls it
    3: "i386",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    21: "ppc64le",
    22: "s390x",
}
_SAME = {"AMD64": "x86_64", "arm64": "aarch64"}
Option = str | int | float | bool
JAXLIBS_CLIENT = "cpu"  # the name that asks jaxlib's own client, which is no plugin
NO_FILE = Path()


@dataclass(frozen=True)
class PluginFile:
    """A plugin: the name that JAX knows it by, its library, and the options of its clients."""

    name: str
    path: Path
    options: Mapping[str, Option] = field(default_factory=dict)


def parse(text: str, options: Mapping[str, Option]) -> PluginFile:
    """Return the plugin that ``NAME=PATH`` or, if it is installed, ``NAME`` says.

    ``options`` are added to those that an installed plugin registers.

    Raises:
        BadInputError: no such file or plugin, or the file is none that this Python can load as a
            PJRT plugin; the message says which.
    """
    name, separator, path = text.partition("=")
    if not _NAME.fullmatch(name):
        raise BadInputError(f"plugin {text!r}: expected NAME=PATH, with letters and digits as NAME")
    if not separator:
        registered = _installed(name)
        return replace(registered, options={**registered.options, **options})
    file = Path(path).expanduser()
    _check(name, file)
    return PluginFile(name, file.resolve(), options)


def parse_options(texts: Sequence[str]) -> dict[str, Option]:
    """Return options written as ``KEY=VALUE``: numbers, true, false, or else text."""
    options = dict[str, Option]()
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise BadInputError(f"--plugin-option {text!r}: expected KEY=VALUE")
        if key in options:
            raise BadInputError(f"--plugin-option {key}: is there twice")
        options[key] = _option(value)
    return options


def _option(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check(name: str, file: Path) -> None:
    """Raise BadInputError unless the file is a PJRT plugin that this process could load."""
    where = f"plugin {name}: {file}"
    if not file.is_file():
        near = [each.name for each in file.parent.glob("*")] if file.parent.is_dir() else []
        hint = f"; {nearest(file.name, near)}" if near else ""
        raise BadInputError(f"{where}: no such file{hint}")
    with file.open("rb") as opened:
        head = opened.read(64)
    if head[:4] != _ELF and head[:4] not in _MACHO:
        raise BadInputError(f"{where}: expected a shared library")
    own = _SAME.get(platform.machine(), platform.machine())
    if head[:4] == _ELF and len(head) >= 20:
        (machine,) = struct.unpack("<H", head[18:20])
        theirs = _MACHINES.get(machine, f"machine {machine}")
        if theirs != own:
            raise BadInputError(f"{where}: it is for {theirs}, and this machine is {own}")
    if wrong := _loaded(file):
        raise BadInputError(f"{where}: {wrong}")


# A library may crash, hang or print while it is loaded: a process of its own loads it.
_LOAD = """import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit(f"can't be loaded: {error}")
hasattr(library, "GetPjrtApi") or sys.exit("is no PJRT plugin: it has no function GetPjrtApi")
import os
os._exit(0)
"""
_SECONDS = 60


def _loaded(file: Path) -> str:
    """Return what is wrong with loading the file in a new process, or ""."""
    command = [sys.executable, "-c", _LOAD, str(file.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it was not loaded after {_SECONDS} s"
    if done.returncode == 0:
        return ""
    text = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 1 and text:
        lacking = re.search(r"(\S+): cannot open shared object file", text[-1])
        return f"it needs the library {lacking[1]}, which is missing" if lacking else text[-1]
    if done.returncode < 0:
        return f"loading it died of {signal.Signals(-done.returncode).name}"
    return f"loading it ended the process with status {done.returncode}"


def _installed(name: str) -> PluginFile:
    """Return an installed plugin; raises BadInputError with the names of those there are."""
    matches = [each for each in entry_points(group=GROUP) if each.name == name]
    names = sorted({each.name for each in entry_points(group=GROUP)})
    if not matches:
        known = nearest(name, names) if names else "none is installed"
        raise BadInputError(
            f"plugin {name}: no installed package has it as an entry point of {GROUP}: {known}; "
            "or give NAME=PATH"
        )
    packages = [each.dist.name if each.dist else "?" for each in matches]
    if len(set(packages)) > 1:
        raise BadInputError(f"plugin {name}: installed by {' and '.join(packages)}")
    data = _registered(name)
    _check(name, Path(data["path"]))
    return PluginFile(data["name"], Path(data["path"]).resolve(), data["options"])


# What a package registers is known once its entry point has run, in a process that has JAX.
_REGISTER = """import json, sys
from importlib.metadata import entry_points
from jax._src import xla_bridge
def register(plugin_name, *rest, library_path=None, options=None, **more):
    values = options() if callable(options) else options or {}
    data = {"name": plugin_name, "path": str(library_path), "options": dict(values)}
    print("plugin", json.dumps(data))
    sys.stdout.flush()
    import os
    os._exit(0)
xla_bridge.register_plugin = register
(each,) = [e for e in entry_points(group="jax_plugins") if e.name == sys.argv[1]][:1]
each.load().initialize()
sys.exit("its entry point registers no plugin on this machine")
"""


def _registered(name: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _REGISTER, name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInputError(f"plugin {name}: it was not registered after {_SECONDS} s") from None
    for line in done.stdout.splitlines():
        if line.startswith("plugin "):
            data: dict[str, Any] = json.loads(line.removeprefix("plugin "))
            return data
    last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    raise BadInputError(f"plugin {name}: it can't be registered with JAX: {last}; give NAME=PATH")
