"""The packages of XLA's CUDA plugin, of which JAX has a pair for each CUDA."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packaging.version import Version

CUDAS = ("12", "13")


def plugin(cuda: str) -> tuple[str, ...]:
    """Return the packages that JAX needs for that CUDA; none for ""."""
    return (f"jax_cuda{cuda}_plugin", f"jax_cuda{cuda}_pjrt") if cuda else ()


PACKAGES = tuple(name for cuda in CUDAS for name in plugin(cuda))


def cuda_of(names: Collection[str]) -> str:
    """Return the CUDA for which a package is among these, or ""."""
    return next((cuda for cuda in CUDAS if any(name in names for name in plugin(cuda))), "")


def unfit(versions: Mapping[str, str]) -> str:
    """Say which of these packages don't go together, with their versions; "" if all do.

    JAX itself leaves out a plugin for another jaxlib, with no more than a warning.
    """
    own = {name: versions[name] for name in PACKAGES if name in versions}
    if sum(any(name in own for name in plugin(cuda)) for cuda in CUDAS) > 1:
        pairs = ", ".join(f"{name} {version}" for name, version in own.items())
        return f"{pairs}: expected the plugin of one CUDA, found those of {' and '.join(CUDAS)}"
    jaxlib = versions.get("jaxlib", "")
    for name, version in own.items():
        if jaxlib and Version(version).release != Version(jaxlib).release:
            return f"{name} {version} is for jaxlib {version}, found jaxlib {jaxlib}"
    return ""
