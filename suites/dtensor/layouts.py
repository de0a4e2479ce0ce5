"""Names and inputs that the DTensor cases share."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from harness.oracles.torch_dtensor import Partial, Placement, Replicate, Shard

S0, S1, S2, R, P = Shard(0), Shard(1), Shard(2), Replicate(), Partial()

# Warnings about torch_xla's own code: its DTensor functions call use_spmd() again, which warns
# about the variable that the first call set; Mesh makes a NumPy array of a tensor, and
# unpadded_data indexes a tensor with a list, in ways that are deprecated.
quiet_upstream = pytest.mark.filterwarnings(
    "ignore:XLA_USE_SPMD is being deprecated:UserWarning",
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    "ignore:Using a non-tuple sequence for multidimensional indexing:UserWarning",
)

# Shapes of a mesh of so many devices.
MESHES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "line": lambda devices: (devices,),
    "column": lambda devices: (devices, 1),
    "plane": lambda devices: (2, devices // 2),
    "cube": lambda devices: (2, 1, devices // 2),
}

# Functionalization is on by default; off is upstream's way around pytorch/xla#9472.
FUNCTIONALIZATION = pytest.mark.parametrize(
    "functionalization",
    [
        pytest.param(True, id="on"),
        pytest.param(
            False, id="off", marks=pytest.mark.environment(XLA_DISABLE_FUNCTIONALIZATION="1")
        ),
    ],
)


def placement_id(placement: Placement) -> str:
    if isinstance(placement, Shard):
        return f"S{placement.dim}"
    return "R" if isinstance(placement, Replicate) else "P"


def placements_id(placements: Sequence[Placement]) -> str:
    """Return a short name such as ``S0,R``."""
    return ",".join(map(placement_id, placements))


def shape_id(shape: Sequence[int]) -> str:
    """Return a short name such as ``7x6``, or ``scalar``."""
    return "x".join(map(str, shape)) or "scalar"


def case_id(value: object) -> str | None:
    """Name a shape, a mesh or placements, for ``pytest.mark.parametrize``."""
    if not isinstance(value, tuple):
        return None
    if value and isinstance(value[0], Placement):
        return placements_id(value)
    return shape_id(value)


def ranks(shape: Sequence[int]) -> torch.Tensor:
    """Return a mesh of the ranks 0 to n - 1 in order."""
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


def counting(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor in which no two elements are equal, so that a misplaced one shows."""
    return torch.arange(math.prod(shape)).reshape(tuple(shape)).to(dtype)
