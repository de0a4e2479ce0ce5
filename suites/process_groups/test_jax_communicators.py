"""What a job on GPUs sets up once: a client for a process, a communicator for a set of devices.

It is to GPUs what the discovery of slices is to TPUs: NCCL connects the devices of a communicator
when they first exchange something, which takes seconds on thousands of GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax import lax

from harness.lanes.events import EventLog
from harness.model.topology import Topology
from suites.shared.global_arrays import Spec, mesh_of, on_each_device, run_jax_ranks, spread

STEPS = 3


@pytest.mark.long
@pytest.mark.lanes("virtual-gpu")
@pytest.mark.upstream("openxla/xla#17108")
@pytest.mark.topologies("4@device", "2xh100:4@node")
def test_each_set_of_devices_is_connected_once(topology: Topology, tpu_events: EventLog) -> None:
    devices = np.arange(topology.total).reshape(2, -1)
    values = (devices + 1).astype(np.float32)

    def both_ways(part: Any) -> Any:
        return lax.psum(part, "x") + 100 * lax.psum(part, "y")

    def rank(number: int) -> list[np.ndarray]:
        del number
        mesh, spec = mesh_of(*devices.shape), Spec("x", "y")
        step = on_each_device(both_ways, mesh, spec)
        results = [step(spread(values, mesh, spec)) for _ in range(STEPS)]
        return [np.asarray(shard.data) for shard in results[-1].addressable_shards]

    own = [part.item() for parts in run_jax_ranks(rank, topology) for part in parts]
    expected = values.sum(0, keepdims=True) + 100 * values.sum(1, keepdims=True)
    np.testing.assert_array_equal(own, expected.ravel())

    events = tpu_events.read()
    clients = [event.process for event in events.of("client")]
    assert len(clients) == len(set(clients)) == topology.process_count
    connected = [tuple(event.facts["devices"]) for event in events.of("communicator")]
    assert sorted(connected) == sorted(map(tuple, [*devices.tolist(), *devices.T.tolist()]))
