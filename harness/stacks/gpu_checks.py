"""What a machine with an NVIDIA card lacks, by its files and its packages; nothing is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.files import read_text
from harness.platforms.gpu import packages
from harness.platforms.gpu.machine import cards
from harness.stacks.checked import Check

_DRIVER = re.compile(r"Kernel Module.*? (\d+\.[\d.]+)")
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib/wsl/lib", "usr/local/nvidia/lib64")
_HIDDEN = ("", "-1", "NoDevFiles", "none", "void")


def machine(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check the device files below ``root``, the driver, and the variables that hide cards."""
    count = len(cards(root / "dev"))
    if not count:
        remedy = "lanes virtual-gpu and gpu-aot need none"
        yield Check("GPU", "none", remedy, needed=False)
        return
    yield Check("GPU", f"{count} cards")
    yield _driver(root, environment)
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if (value := environment.get(name)) is not None:
            yield Check(name, repr(value), _hidden(name, value, count), needed=False)
    if chosen := environment.get("JAX_PLATFORMS", ""):
        has_it = {"cuda", "gpu"} & set(chosen.split(","))
        remedy = "" if has_it else "JAX looks for no GPU: unset it, or JAX_PLATFORMS=cuda,cpu"
        yield Check("JAX_PLATFORMS", chosen, remedy, needed=False)


def _driver(root: Path, environment: Mapping[str, str]) -> Check:
    path = root / "proc/driver/nvidia/version"
    match = _DRIVER.search(read_text(path)) if path.exists() else None
    if match is None:
        remedy = "load NVIDIA's kernel module: its driver is not installed, or not for this kernel"
        return Check("NVIDIA driver", f"no {path}", remedy, needed=False)
    folders = [root / folder for folder in _LIBRARIES]
    folders += map(Path, filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")))
    if not any((folder / "libcuda.so.1").exists() for folder in folders):
        remedy = "no libcuda.so.1: install the driver's libraries; a container needs --gpus all"
        return Check("NVIDIA driver", match[1], remedy, needed=False)
    return Check("NVIDIA driver", match[1])


def _hidden(name: str, value: str, count: int) -> str:
    if value in _HIDDEN:
        return f"it hides every card: unset {name}"
    numbers = [int(text) for text in value.split(",") if text.strip().isdecimal()]
    if wrong := [number for number in numbers if number >= count]:
        return f"there is no card {wrong[0]}: expected 0 to {count - 1}"
    return ""


def plugin(installed: Mapping[str, Distribution]) -> Iterator[Check]:
    """Check JAX's CUDA plugin, and name the packages of NVIDIA's that it loads on a card."""
    versions = {name.replace("-", "_"): package.version for name, package in installed.items()}
    if unfit := packages.unfit(versions):
        yield Check("CUDA plugin", "does not fit", unfit)
        return
    for cuda in packages.CUDAS:
        name, library = packages.plugin(cuda)
        if name not in versions and library not in versions:
            continue
        if lacking := [package for package in (name, library) if package not in versions]:
            remedy = f"pip install {lacking[0]}=={versions.get('jaxlib', '')}"
            yield Check("CUDA plugin", f"CUDA {cuda}, no {lacking[0]}", remedy)
            return
        yield Check("CUDA plugin", f"{versions[name]}, CUDA {cuda}")
        requirements = map(Requirement, installed[canonicalize_name(name)].requires or [])
        absent = [
            requirement
            for requirement in requirements
            if requirement.marker is not None
            and requirement.marker.evaluate({"extra": "with-cuda"})
            and not _has(installed, requirement)
        ]
        if absent:
            jax = versions.get("jax", "")
            texts = ", ".join(f"{each.name}{each.specifier}" for each in absent)
            remedy = f"a card needs them, other lanes do not: pip install 'jax[cuda{cuda}]=={jax}'"
            yield Check("NVIDIA libraries", f"{len(absent)} missing", f"{texts}: {remedy}", False)


def _has(installed: Mapping[str, Distribution], requirement: Requirement) -> bool:
    package = installed.get(canonicalize_name(requirement.name))
    return package is not None and requirement.specifier.contains(package.version, prereleases=True)
