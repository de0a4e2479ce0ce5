"""Meshes and specs to enumerate, and how to mark a tensor with one."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

from harness.model.mismatch import NumbersError
from harness.model.topology import Topology
from harness.oracles.sharding import Layout, Shape, Spec, as_numpy, check_placement
from suites.shared.platforms import is_on_gpus

# Every rank has a mesh of all devices on one axis and, where there are enough, one that splits
# them. The rest of the space is left to hypothesis.
_SHAPES: dict[tuple[int, int], list[Shape]] = {
    (2, 3): [(1, 2, 1)],
    (4, 2): [(2, 2), (4, 1)],
    (4, 3): [(2, 1, 2), (1, 4, 1)],
    (8, 2): [(2, 4), (4, 2), (1, 8)],
    (8, 3): [(2, 2, 2), (4, 1, 2)],
}
NAMES = ("x", "y", "z")


def mesh_shapes(devices: int, rank: int) -> list[Shape]:
    """List a few mesh shapes of `rank` dimensions that use all `devices`."""
    return _SHAPES.get((devices, rank), [(1,) * (rank - 1) + (devices,)])


def shuffled(devices: int, seed: int = 1) -> tuple[int, ...]:
    """Device ids in an order of their own; with two devices or more, never 0, 1, 2, ..."""
    ids = tuple(int(i) for i in np.random.default_rng(seed).permutation(devices))
    return ids if ids != tuple(range(devices)) else ids[::-1]


def layouts(devices: int, rank: int) -> list[Layout]:
    """Return the meshes of :func:`mesh_shapes`, with named axes, over shuffled devices."""
    return [Layout(s, shuffled(devices), NAMES[:rank]) for s in mesh_shapes(devices, rank)]


def every_spec(layout: Layout, tensor_rank: int) -> Iterator[Spec]:
    """All specs of a tensor: each axis shards one dimension or none, a tuple's order counts."""
    axes: tuple[int | str, ...] = layout.names or tuple(range(len(layout.shape)))
    for homes in itertools.product((None, *range(tensor_rank)), repeat=len(axes)):
        members = [
            [a for a, h in zip(axes, homes, strict=True) if h == d] for d in range(tensor_rank)
        ]
        for orders in itertools.product(*(itertools.permutations(m) for m in members)):
            yield tuple(_entry(order) for order in orders)


def _entry(axes: tuple[int | str, ...]) -> int | str | tuple[int | str, ...] | None:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def xla_mesh(layout: Layout) -> xs.Mesh:
    """torch_xla's mesh of a layout."""
    return xs.Mesh(np.array(layout.device_ids), layout.shape, layout.names)


def numbered(shape: Shape, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a host tensor in which every element differs (modulo the dtype's range)."""
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype)


def marked(value: torch.Tensor, layout: Layout, spec: Spec) -> torch.Tensor:
    """`value` on the device, sharded by `spec`."""
    tensor = value.to("xla")
    xs.mark_sharding(tensor, xla_mesh(layout), spec)
    return tensor


def check_marked(value: torch.Tensor, layout: Layout, spec: Spec) -> None:
    """Mark `value` and raise MismatchError when its shards are not JAX's."""
    check_placement(marked(value, layout, spec), as_numpy(value), layout, spec)


def check_product(error: float, label: str) -> None:
    """Raise NumbersError when a matrix product's largest error is more than rounding."""
    if not error < 1e-5:  # NaN is not, either
        raise NumbersError(f"{label} is wrong by {error:.3}")


def grid(topology: Topology) -> Layout:
    """Return a mesh of two rows (one, on one device) over shuffled devices."""
    rows = min(2, topology.devices)
    return Layout((rows, topology.devices // rows), shuffled(topology.devices), ("x", "y"))


def sharding_of(tensor: torch.Tensor) -> str:
    """Return the sharding that torch_xla reports; "" if there is none."""
    return torch_xla._XLAC._get_xla_sharding_spec(tensor)


def hybrid_mesh(inner: Shape, outer: Shape, names: tuple[str, ...]) -> xs.Mesh:
    """Return a mesh of the slices by ``outer``, and of each slice's devices by ``inner``.

    torch_xla's own arranges TPUs alone.
    """
    if not is_on_gpus():
        return xs.HybridMesh(ici_mesh_shape=inner, dcn_mesh_shape=outer, axis_names=names)
    devices = np.arange(math.prod(outer + inner)).reshape(outer + inner)
    order = [axis for n in range(len(inner)) for axis in (n, len(outer) + n)]
    shape = tuple(a * b for a, b in zip(outer, inner, strict=True))
    return xs.Mesh(devices.transpose(order).flatten(), shape, names)
