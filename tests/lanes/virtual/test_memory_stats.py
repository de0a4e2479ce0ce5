"""The memory of a device, as JAX and torch_xla are told it: what arrays take, by their sizes."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.deadline(120),
]
GIB = 1 << 30


def in_use(device: Any) -> int:
    gc.collect()
    return int(device.memory_stats()["bytes_in_use"])


@pytest.mark.topologies("v6e:4", "tpu7x:4")
def test_jax(topology: Topology) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    devices = jax.devices()
    limits = {device.memory_stats()["bytes_limit"] for device in devices}
    assert limits == {(96 if topology.generation == "tpu7x" else 32) * GIB}
    on_all = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec("d"))
    before = [in_use(device) for device in devices]

    x = jax.device_put(np.zeros((len(devices) * 4, 8), np.float32), on_all)
    assert [in_use(device) for device in devices] == [each + 128 for each in before]
    on_host = jax.device_put(x, on_all.with_memory_kind("pinned_host"))
    y = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=on_all)(x)
    assert x.is_deleted()
    assert [in_use(device) for device in devices] == [each + 128 for each in before]
    z = jax.device_put(np.int8(1), SingleDeviceSharding(devices[1]))
    assert in_use(devices[1]) == before[1] + 129
    y.delete()
    assert in_use(devices[0]) == before[0]
    del x, y, z, on_host
    assert [in_use(device) for device in devices] == before
    assert devices[0].memory_stats()["peak_bytes_in_use"] >= before[0] + 128


@pytest.mark.topologies(2)
def test_what_fails_keeps_nothing() -> None:
    import jax

    def fail(_: Any) -> Any:
        raise ValueError("on purpose")

    device = jax.devices()[0]
    x = jax.device_put(np.zeros(64, np.float32), device)
    before = in_use(device)
    f = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    for _ in range(3):
        with pytest.raises(Exception, match="on purpose"):
            f(x).block_until_ready()
    assert in_use(device) == before


def _count_in_a_rank(_rank: int) -> list[int]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("d",))
    (device,) = jax.local_devices()
    counts = [in_use(device)]
    shape = (8 * len(jax.devices()), 8)
    on_all = NamedSharding(mesh, PartitionSpec("d"))
    x = jax.make_array_from_callback(shape, on_all, lambda at: np.ones(shape, np.float32)[at])
    # The sum is exchanged, so the result is promised before it is there.
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(x)
    counts.append(in_use(device))
    assert float(total) == np.prod(shape)
    del x, total
    return [*counts, in_use(device)]


@pytest.mark.topologies("4@chip")
def test_ranks_count_their_own(topology: Topology) -> None:
    for before, during, after in run_ranks(_count_in_a_rank, topology):
        assert (during - before, after) == (8 * 8 * 4 + 4, before)


@pytest.mark.topologies(2)
def test_torch_xla() -> None:
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    device = torch_xla.device()
    x = torch.zeros(1024, dtype=torch.float32).to(device)
    torch_xla.sync()
    info = xm.get_memory_info(device)
    assert info["bytes_limit"] == 32 * GIB
    assert info["bytes_used"] >= 4096
    y = x + 1
    torch_xla.sync(wait=True)
    assert xm.get_memory_info(device)["bytes_used"] == info["bytes_used"] + 4096
    del y
    gc.collect()
    end = time.monotonic() + 20  # torch_xla's own thread may still hold it
    while xm.get_memory_info(device)["bytes_used"] != info["bytes_used"] and time.monotonic() < end:
        time.sleep(0.01)
    assert xm.get_memory_info(device)["bytes_used"] == info["bytes_used"]
