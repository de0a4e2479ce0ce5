"""Detect this machine's NVIDIA GPUs from files and variables, without starting CUDA here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from harness.errors import BadInputError
from harness.platforms.gpu.generations import GENERATIONS
from harness.platforms.gpu.packages import CUDAS, PACKAGES

VISIBLE = "CUDA_VISIBLE_DEVICES"
DEVICES = Path("/dev")


def cards(devices: Path = DEVICES) -> list[Path]:
    """Return the device files of GPUs: ``nvidia0``, ``nvidia1``, ..."""
    return sorted(path for path in devices.glob("nvidia[0-9]*") if path.name[6:].isdecimal())


def topology() -> str:
    """Return the GPUs that this process may use, as ``h100:8``, or ``8`` of a kind without a name.

    Raises BadInputError if there are none, or of several kinds.
    """
    kinds = [name for name, _ in _queried()] if cards() else []
    return topology_of(kinds, os.environ.get(VISIBLE))


def topology_of(kinds: Sequence[str], visible: str | None) -> str:
    """Return the topology of GPUs of these kinds; ``visible`` lists those that may be used."""
    if not kinds:
        raise BadInputError(
            "no GPU on this machine: expected /dev/nvidia0, and nvidia-smi of its driver"
        )
    numbers = _numbers(visible, len(kinds))
    if not numbers:
        raise BadInputError(
            f"no GPU is visible: {VISIBLE}={visible}: expected 0 to {len(kinds) - 1}"
        )
    several = {kinds[number] for number in numbers}
    if len(several) > 1:
        raise BadInputError(
            f"GPUs of several kinds, {', '.join(sorted(several))}: expected one, by {VISIBLE}"
        )
    (kind,) = several
    names = [generation.name for generation in GENERATIONS if generation.device_kind == kind]
    return f"{names[0]}:{len(numbers)}" if names else str(len(numbers))


def _numbers(visible: str | None, count: int) -> list[int]:
    """Return the GPUs that CUDA shows: it ends its list at the first that it does not know."""
    if visible is None:
        return [*range(count)]
    numbers: list[int] = []
    for word in visible.split(","):
        if not word.strip().isdecimal() or int(word) >= count:
            break
        numbers.append(int(word))
    return numbers


@cache
def _queried() -> list[tuple[str, str]]:
    """Return name and driver of each GPU, as ``nvidia-smi`` prints them; it is in every driver."""
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        ended = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.rpartition(",") for line in ended.stdout.splitlines() if line.strip())
    return [(name.strip(), driver.strip()) for name, _, driver in rows]


def library() -> str:
    """Return the path of XLA's CUDA plugin; raise BadInputError without it, or with two."""
    spec = find_spec("jax_plugins")
    folders = (spec.submodule_search_locations or []) if spec else []
    names = [f"xla_cuda{cuda}/xla_cuda_plugin.so" for cuda in CUDAS]
    paths = [path for f in folders for name in names if (path := Path(f) / name).exists()]
    if not paths:
        raise BadInputError(
            "XLA's CUDA plugin is not installed: expected jax-cuda12-pjrt or jax-cuda13-pjrt"
        )
    if len(paths) > 1:
        raise BadInputError(f"CUDA 12 and 13 are installed together: expected one: {paths}")
    return str(paths[0])


def environment(plugin: str, devices: int) -> Mapping[str, str | None]:
    """Return what shows a process so many of the GPUs that this one may use."""
    del plugin  # JAX's own package names it, see on_import
    numbers = _numbers(os.environ.get(VISIBLE), len(_queried()))
    return {VISIBLE: ",".join(map(str, numbers[:devices]))}


def facts() -> Mapping[str, str]:
    """Return the kind of GPU, its driver and the versions of XLA's plugin for it."""
    (name, driver), *_ = _queried() or [("", "")]
    plugins = {}
    for package in PACKAGES:
        try:
            plugins[package] = version(package)
        except PackageNotFoundError:
            continue
    versions = ", ".join(f"{package} {number}" for package, number in plugins.items())
    return {"card": name, "driver": driver, "plugin": versions}
