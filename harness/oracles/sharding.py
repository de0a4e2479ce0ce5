"""Parts of an array that each device holds: what JAX says, and what torch_xla placed.

The right answer is :class:`jax.sharding.NamedSharding` over the same mesh shape, device ids and
axis names. JAX takes even sizes only. For uneven ones torch_xla follows GSPMD (arXiv:2105.04663,
section 4.1, and ``HloSharding::TileLimitForDevice``): a dimension is rounded up to a multiple of
its number of shards, and what lies outside the array is padding. So JAX is asked about the
rounded-up shape, and its answer is cut at the array's real size.

Use it only in a case's child process: it starts JAX's CPU client there.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from harness.model.mismatch import MismatchError, NumbersError
from harness.oracles.jax_cpu import cpu_devices

Axis = int | str
Spec = tuple[Axis | tuple[Axis, ...] | None, ...]
Shape = tuple[int, ...]
Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Layout:
    """A device mesh: its shape, the device ids in row-major order, and perhaps axis names."""

    shape: Shape
    device_ids: tuple[int, ...]
    names: tuple[str, ...] | None = None

    def jax_mesh(self) -> jax.sharding.Mesh:
        devices = cpu_devices(len(self.device_ids))
        grid = np.array([devices[i] for i in self.device_ids], dtype=object).reshape(self.shape)
        return jax.sharding.Mesh(grid, self._jax_names())

    def partition_spec(self, spec: Spec) -> PartitionSpec:
        """`spec` for JAX, in which every axis is named."""
        return PartitionSpec(*map(self._named, spec))

    def _jax_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"axis{i}" for i in range(len(self.shape)))

    def _named(self, entry: Axis | tuple[Axis, ...] | None) -> Any:
        if isinstance(entry, tuple):
            return tuple(self._named(axis) for axis in entry)
        return self._jax_names()[entry] if isinstance(entry, int) else entry


@dataclass(frozen=True)
class Tile:
    """Part of an array on one device, as [start, stop) of each dimension.

    `cell` includes the padding, `bounds` does not. `buffer` is the shape in memory: the cell's,
    but a dimension of size 0 is not padded.
    """

    cell: Bounds
    bounds: Bounds
    buffer: Shape

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, stop) for start, stop in self.bounds)


@dataclass(frozen=True)
class PlacedShard:
    """Shard that torch_xla placed on one device. `values` includes the padding."""

    device: int
    replica: int
    bounds: Bounds
    values: np.ndarray[Any, Any]


def expected_tiles(layout: Layout, spec: Spec, shape: Shape) -> dict[int, Tile]:
    """Return the tile of an array of `shape` on each device, by JAX's NamedSharding.

    Raises what JAX raises when it refuses the spec for this mesh.
    """
    sharding = NamedSharding(layout.jax_mesh(), layout.partition_spec(spec))
    size = math.prod(layout.shape)
    probe = sharding.shard_shape((size,) * len(shape))  # `size` divides by every count of shards
    counts = [size // part for part in probe]
    padded = tuple(-(-max(d, 1) // count) * count for d, count in zip(shape, counts, strict=True))
    placement: Mapping[Any, Any] = sharding.devices_indices_map(padded)
    return {device.id: _tile(index, padded, shape) for device, index in placement.items()}


def placed_shards(tensor: Any) -> dict[int, PlacedShard]:
    """Return what torch_xla placed on each device, for an XLA tensor or an XLAShardedTensor.

    The tensor must be marked, and its data must have arrived (``torch_xla.sync(wait=True)``).
    Values are compared as float32 or integers: bfloat16 has no NumPy type.
    """
    import torch_xla

    tensor = getattr(tensor, "global_tensor", tensor)
    runtime: Any = torch_xla._XLAC
    shards = runtime._get_local_shards([tensor])[0]
    places = runtime._get_local_shard_replica_and_indices([tensor])[0]
    full: Bounds = tuple((0, dim) for dim in tensor.shape)
    placed = {}
    for (data, name), (replica, indices) in zip(shards, places, strict=True):
        device = int(name.rsplit(":", 1)[1])
        bounds = full if indices is Ellipsis else tuple((s.start, s.stop) for s in indices)
        placed[device] = PlacedShard(device, replica, bounds, as_numpy(data))
    return placed


def as_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Gather a tensor's values on the host; bfloat16 becomes float32, which holds it exactly."""
    tensor = getattr(tensor, "global_tensor", tensor).detach().cpu()
    values: np.ndarray[Any, Any] = (
        tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    ).numpy()
    return values


def placement_errors(
    tensor: Any, values: np.ndarray[Any, Any], layout: Layout, spec: Spec
) -> list[MismatchError]:
    """Return where shards of `tensor` differ from what JAX does with `values`; [] if nowhere."""
    tiles = expected_tiles(layout, spec, values.shape)
    placed = placed_shards(tensor)
    if placed.keys() != tiles.keys():
        return [MismatchError(f"shards on devices {sorted(placed)}, JAX uses {sorted(tiles)}")]
    errors = [e for d in sorted(tiles) for e in _shard_errors(placed[d], tiles[d], values)]
    return errors or list(_replica_errors(placed, tiles))


def check_placement(tensor: Any, values: np.ndarray[Any, Any], layout: Layout, spec: Spec) -> None:
    """Raise MismatchError when a shard of `tensor` is not what JAX makes of `values`.

    It is a NumbersError when the first such shard is the right one, with wrong values.
    """
    errors = placement_errors(tensor, values, layout, spec)
    if errors:
        raise type(errors[0])(
            f"{len(errors)} shards differ from JAX's: {errors[0]} "
            f"(shape {values.shape}, spec {spec}, mesh {layout})"
        )


def _tile(index: tuple[slice, ...], padded: Shape, shape: Shape) -> Tile:
    cell = tuple(part.indices(dim)[:2] for part, dim in zip(index, padded, strict=True))
    bounds = tuple((min(a, d), min(b, d)) for (a, b), d in zip(cell, shape, strict=True))
    buffer = tuple(b - a if d else 0 for (a, b), d in zip(cell, shape, strict=True))
    return Tile(cell, bounds, buffer)


def _shard_errors(
    shard: PlacedShard, tile: Tile, values: np.ndarray[Any, Any]
) -> Iterator[MismatchError]:
    where = f"device {shard.device}"
    if shard.bounds != tile.bounds:
        yield MismatchError(f"{where} says it holds {shard.bounds}, JAX puts {tile.bounds} there")
    elif shard.values.shape != tile.buffer:
        yield MismatchError(f"{where} has a buffer of {shard.values.shape}, expected {tile.buffer}")
    else:
        own = shard.values[tuple(slice(0, stop - start) for start, stop in tile.bounds)]
        if not np.array_equal(own, values[tile.slices]):
            yield NumbersError(
                f"{where} holds {own.tolist()}, JAX puts {values[tile.slices].tolist()} there"
            )


def _replica_errors(
    placed: dict[int, PlacedShard], tiles: dict[int, Tile]
) -> Iterator[MismatchError]:
    """Devices with the same tile are its replicas 0, 1, ...: each number once."""
    replicas: dict[Bounds, list[int]] = defaultdict(list)
    for device, tile in tiles.items():
        replicas[tile.cell].append(placed[device].replica)
    for cell, numbers in replicas.items():
        if sorted(numbers) != list(range(len(numbers))):
            yield MismatchError(f"tile {cell} has the replica ids {sorted(numbers)}")
