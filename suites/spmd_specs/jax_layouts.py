"""Where JAX must put each part of an array, by NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.model.mismatch import NumbersError

AXES = ("x", "y")
Entry = str | tuple[str, ...] | None
_ENTRIES: tuple[Entry, ...] = (None, "x", "y", ("x", "y"), ("y", "x"))


def mesh_of_two_rows() -> Mesh:
    """All devices, numbered row by row; with two slices a row is a slice, and one device is one."""
    devices = sorted(jax.devices(), key=lambda device: device.id)
    return Mesh(np.array(devices).reshape(min(2, len(devices)), -1), AXES)


def specs(rank: int) -> Iterator[tuple[Entry, ...]]:
    """Every way to divide an array of that rank over the axes, each at most once."""
    for entries in product(_ENTRIES, repeat=rank):
        used = [axis for entry in entries for axis in _axes(entry)]
        if len(used) == len(set(used)):
            yield entries


def name_of(entries: Sequence[Entry]) -> str:
    """``x-yx-_``: the axes of each dimension."""
    return "-".join("".join(_axes(entry)) or "_" for entry in entries) or "scalar"


def sharding(mesh: Mesh, entries: Sequence[Entry]) -> NamedSharding:
    """Return the sharding of these entries."""
    return NamedSharding(mesh, PartitionSpec(*entries))


def check(array: jax.Array, value: np.ndarray, mesh: Mesh, entries: Sequence[Entry]) -> None:
    """Every device of the mesh has its own part of the value, and nothing else.

    Raises NumbersError, naming all devices that have something else.
    """
    parts = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    wrong = []
    for place, device in np.ndenumerate(mesh.devices):
        expected = part(value, entries, dict(zip(AXES, place, strict=True)), dict(mesh.shape))
        got = parts.get(device)
        if got is None or got.dtype != expected.dtype or not np.array_equal(got, expected):
            got_text = "nothing" if got is None else f"{got.dtype}{got.shape} {got.tolist()}"
            wrong.append(
                f"device {device.id}: expected {expected.dtype}{expected.shape} "
                f"{expected.tolist()}, got {got_text}"
            )
    if wrong or array.shape != value.shape:
        raise NumbersError("\n".join(wrong) or f"expected {value.shape}, got {array.shape}")


def part(
    value: np.ndarray, entries: Sequence[Entry], place: dict[str, Any], sizes: dict[str, int]
) -> np.ndarray:
    """Return the part of the device at that place: the first axis of a dimension is the major."""
    for dimension, entry in enumerate(entries):
        axes = _axes(entry)
        index = 0
        for axis in axes:
            index = index * sizes[axis] + place[axis]
        length = value.shape[dimension] // prod(sizes[axis] for axis in axes)
        value = np.take(value, range(index * length, (index + 1) * length), dimension)
    return value


def _axes(entry: Entry) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


@contextmanager
def partitioned_by(name: str) -> Iterator[None]:
    """Let GSPMD or Shardy divide programs; skip the case if this release has no Shardy."""
    shardy = name == "shardy"
    if not hasattr(jax.config, "jax_use_shardy_partitioner"):
        if shardy:
            pytest.skip("this release of JAX has no Shardy")
        yield
        return
    if shardy:  # 0.4.33 has the switch, and a jaxlib without the dialect
        reason = "this release of jaxlib has no Shardy"
        pytest.importorskip("jaxlib.mlir.dialects.sdy", reason=reason, exc_type=ImportError)
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
