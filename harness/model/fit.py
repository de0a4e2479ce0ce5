"""Whether the installed components are those that TorchTPU can be loaded with; nothing is imported.

torch_xla and JAX are left out: nightly wheels of theirs name other versions than they run with.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.model.versions import ABSENT, COMPONENTS, stack_versions


def unfit_here() -> str:
    """What this environment's torch_tpu lacks, as a sentence; "" if nothing, or without one."""
    try:
        own = distribution("torch_tpu")
    except PackageNotFoundError:
        return ""
    lacks = "; ".join(unmet(own, stack_versions()))
    return lacks and f"torch_tpu {own.version} can't be used in this environment: it {lacks}"


def unmet(own: Distribution, versions: Mapping[str, str]) -> list[str]:
    """What a package requires of Python and of the components, and has not: "needs X, found Y"."""
    python = ",".join(own.metadata.get_all("Requires-Python") or [])
    wanted: dict[str, SpecifierSet] = {"python": SpecifierSet(python)} | {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in map(Requirement, own.requires or [])
        if requirement.marker is None or requirement.marker.evaluate()
    }
    lacks = []
    for name in ("python", *COMPONENTS):
        specifier = wanted.get(canonicalize_name(name))
        found = versions.get(name, ABSENT)
        if specifier is not None and not _has(specifier, found):
            lacks.append(f"needs {name}{specifier}, found {'none' if found == ABSENT else found}")
    return lacks


def _has(specifier: SpecifierSet, version: str) -> bool:
    return version != ABSENT and specifier.contains(version, prereleases=True)
