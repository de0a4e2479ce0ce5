"""Check, without importing anything, that frameworks and plugins can be loaded here.

torch_xla and JAX are left out: nightly wheels of theirs name other versions than they run with.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.model.topology import Topology
from harness.model.versions import ABSENT, COMPONENTS, present, stack_versions
from harness.platforms.gpu import packages
from harness.platforms.tpu import TPU

LAUNCHER = "set_tpu_launch_env"


def unfit_here() -> str:
    """Return what torch_tpu lacks, or which CUDA plugin is the wrong one, or "" if nothing."""
    if unfit := packages.unfit(present(stack_versions())):
        return unfit
    try:
        own = distribution("torch_tpu")
    except PackageNotFoundError:
        return ""
    lacks = "; ".join(unmet(own, stack_versions()))
    return lacks and f"torch_tpu {own.version} can't be used in this environment: it {lacks}"


def unmet(own: Distribution, versions: Mapping[str, str]) -> list[str]:
    """Return the unmet requirements of Python and of components: "needs X, found Y"."""
    python = ",".join(own.metadata.get_all("Requires-Python") or [])
    wanted: dict[str, SpecifierSet] = {"python": SpecifierSet(python)} | {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in map(Requirement, own.requires or [])
        if requirement.marker is None or requirement.marker.evaluate()
    }
    lacks = []
    for name in ("python", *COMPONENTS):
        specifier = wanted.get(canonicalize_name(name))
        installed = versions.get(name, ABSENT)
        if specifier is not None and not _has(specifier, installed):
            lacks.append(
                f"needs {name}{specifier}, found {'none' if installed == ABSENT else installed}"
            )
    return lacks


def _has(specifier: SpecifierSet, version: str) -> bool:
    return version != ABSENT and specifier.contains(version, prereleases=True)


def unlaunched(program: str, topology: Topology) -> str:
    """Say why TorchTPU's launcher, if a file calls it, can't start a process for each chip.

    Return "" if it can. The launcher starts only the numbers of processes that its table has for
    the generation.

    Args:
        program: the text of the file.
        topology: the topology of the job.
    """
    if f"{LAUNCHER}(" not in program or topology.processes != "chip":
        return ""
    generation = TPU.generation(topology.generation)
    known = launched().get(generation.pci)
    if not known or topology.devices in known:
        return ""
    return (
        f"{LAUNCHER} starts {', '.join(map(str, known))} processes on {generation.name}, not "
        f"{topology.devices}; xla-harness run --processes chip starts any number"
    )


@cache
def launched() -> Mapping[int, tuple[int, ...]]:
    """Return the numbers of chips in the installed torch_tpu's tables, by the chip's PCI device.

    They come from its ``hardware.py``, where one table names the others; empty if it has another
    form.
    """
    try:
        file = distribution("torch_tpu").locate_file("torch_tpu/_internal/utils/hardware.py")
        tree = ast.parse(Path(str(file)).read_text(encoding="utf-8"))
    except (PackageNotFoundError, FileNotFoundError):
        return {}
    tables = {
        node.target.id: [
            (key.value, value)
            for key, value in zip(dictionary.keys, dictionary.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        for dictionary in ast.walk(node)
        if isinstance(dictionary, ast.Dict)
    }
    return {
        int(str(device), 16): tuple(int(str(chips)) for chips, _ in tables.get(table.id, ()))
        for device, table in tables.get("_TOPOLOGY_BY_TPU_PCI_DEVICE_ID", ())
        if isinstance(table, ast.Name)
    }
