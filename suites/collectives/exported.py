"""Collectives that a version of JAX exports, kept so that other versions can run them.

``python -m suites.collectives.exported`` writes ``fixtures/exported/jax-VERSION.zip`` in an
environment of that version; it needs flatbuffers, as jax.export does.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "fixtures" / "exported"
DEVICES = 8
PLATFORMS = ("cpu", "tpu")  # that they are for
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the same artifacts, the same file


def versions() -> list[str]:
    """List the versions of JAX whose artifacts are kept."""
    return sorted(path.stem.removeprefix("jax-") for path in FOLDER.glob("jax-*.zip"))


def read(version: str) -> Mapping[str, bytes]:
    """Return the artifacts that this version of JAX wrote, by the collective's name."""
    with zipfile.ZipFile(FOLDER / f"jax-{version}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def export(program: Any, *given: Any, platforms: tuple[str, ...] | None = None) -> Any:
    """Export the program for arguments like these; by default, for the platform in use."""
    import jax
    from jax import export as exporting

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in given]
    return exporting.export(program, platforms=platforms)(*shapes)


def written(exported: Any, order: int = 0) -> Any:
    """Write an exported function and read it, with the gradients of so many orders."""
    from jax import export as exporting

    return exporting.deserialize(exported.serialize(vjp_order=order))


def main() -> None:
    """Write the artifacts of this environment's JAX."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax
    import numpy as np

    from suites.shared.global_arrays import Spec, mesh_of, on_each_device, spread
    from suites.shared.jax_collectives import AXES, COLLECTIVES, over
    from suites.shared.values import ranks_of

    mesh, rows = mesh_of(2, DEVICES // 2), Spec(("x", "y"))
    whole = spread(np.concatenate(ranks_of(DEVICES, (8, 8))), mesh, rows)
    FOLDER.mkdir(exist_ok=True)
    with zipfile.ZipFile(FOLDER / f"jax-{jax.__version__}.zip", "w") as archive:
        for name in COLLECTIVES:
            program = on_each_device(over(name, AXES["within"]), mesh, rows)
            exported = export(program, whole, platforms=PLATFORMS)
            entry = zipfile.ZipInfo(name, _WRITTEN)
            archive.writestr(entry, exported.serialize(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
