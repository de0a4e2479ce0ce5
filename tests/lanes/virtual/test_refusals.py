"""What the virtual TPU can't compile is refused with what it lacks and what to do instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(4)]


def divided() -> Any:
    """An array of 8x4 over all devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    return jax.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, PartitionSpec("d")))


def test_inspected_shardings() -> None:
    """libtpu has no such functions either, as upstream's own tests say."""
    import jax

    def inspected(x: Any) -> Any:
        jax.debug.inspect_array_sharding(x * 2, callback=print)
        return x

    with pytest.raises(Exception, match=r"UNIMPLEMENTED: virtual TPU: jax.debug.inspect_array"):
        jax.jit(inspected)(divided())


def test_custom_partitioning() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.custom_partitioning import custom_partitioning

    sine = custom_partitioning(jnp.sin)
    sine.def_partition(
        infer_sharding_from_operands=lambda mesh, given, result: given[0].sharding,
        partition=lambda mesh, given, result: (mesh, jnp.sin, result.sharding, (result.sharding,)),
        sharding_rule="i j -> i j",
    )
    with pytest.raises(Exception, match=r": virtual TPU: custom_partitioning .* jax.shard_map"):
        jax.jit(sine)(divided())


def test_functions_that_no_library_has() -> None:
    import jax

    unknown = jax.ffi.ffi_call("nobody_has_this", jax.ShapeDtypeStruct((8, 4), np.float32))
    with pytest.raises(Exception, match=r"nobody_has_this(.|\n)*virtual TPU: XLA's CPU compiler"):
        jax.jit(unknown)(np.ones((8, 4), np.float32))
