"""What JAX's releases have in other ways: shard_map, and StableHLO that others read."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

try:
    from jax import shard_map as _shard_map

    _UNCHECKED = {"check_vma": False}
except ImportError:  # JAX before 0.6
    from jax.experimental.shard_map import shard_map as _shard_map

    _UNCHECKED = {"check_rep": False}

unreadable_before_0_4_30 = pytest.mark.skipif(
    jax.__version_info__ < (0, 4, 30),
    reason="XLA of today, which the virtual TPU has, does not read what JAX 0.4.29 writes",
)

since_0_5 = pytest.mark.skipif(
    jax.__version_info__ < (0, 5), reason="JAX before 0.5 answers much of this in other ways"
)

until_0_8 = pytest.mark.skipif(
    jax.__version_info__ >= (0, 8), reason="pmap is shard_map from JAX 0.8 on, and can't do it"
)

needs_tpu_interpret_mode = pytest.mark.skipif(
    jax.__version_info__ < (0, 7, 1), reason="TPU interpret mode is used from JAX 0.7.1 on"
)

needs_explicit_axes = pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="this release of JAX has no mesh of explicit axes"
)


def explicit(mesh: Any) -> Any:
    """Return the same mesh with explicit axes."""
    from jax.sharding import AxisType

    types = (AxisType.Explicit,) * len(mesh.axis_names)
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def checked(fn: Callable[..., Any], mesh: Any, given: Any, result: Any) -> Callable[..., Any]:
    """Map ``fn`` over each device's parts, divided by the specs ``given`` and ``result``."""
    mapped: Callable[..., Any] = _shard_map(fn, mesh=mesh, in_specs=given, out_specs=result)
    return mapped


def jitted(fn: Callable[..., Any], mesh: Any, given: Any, result: Any) -> Callable[..., Any]:
    """Map and compile ``fn`` without the check of what all devices share: few kernels pass it."""
    mapped = _shard_map(fn, mesh=mesh, in_specs=given, out_specs=result, **_UNCHECKED)
    return jax.jit(mapped)
