"""The shapes that a mesh can have, whichever framework makes it."""

import itertools
import math

from harness.oracles.sharding import Shape


def all_mesh_shapes(devices: int, rank: int) -> list[Shape]:
    """Every mesh shape of `rank` dimensions that uses all `devices`."""
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    shapes = itertools.product(divisors, repeat=rank)
    return [shape for shape in shapes if math.prod(shape) == devices]
