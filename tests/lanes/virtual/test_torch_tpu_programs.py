"""The programs that torch_tpu submits for its collectives, executed, with NumPy as oracle.

They are recorded by ``tests/support/record_torch_tpu.py``, so that an environment without
torch_tpu sees whether the virtual TPU still runs them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from harness.lanes.hlo import DeviceAssignment
from harness.model.topology import Topology

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(4)]

RECORDED = Path(__file__).parents[3] / "fixtures/torch_tpu/programs.json"
PROGRAMS = json.loads(RECORDED.read_text())["programs"]
Arrays = Sequence[np.ndarray]  # one a rank
Meaning = Callable[[Arrays], Arrays]


def _reduced(of_two: np.ufunc) -> Meaning:
    return lambda xs: [reduce(of_two, xs)] * len(xs)


def _of_pairs(xs: Arrays) -> Arrays:
    return [xs[rank] + xs[(rank + 2) % 4] for rank in range(4)]


def _gathered(xs: Arrays) -> Arrays:
    return [np.concatenate(xs)] * len(xs)


def _scattered(xs: Arrays) -> Arrays:
    return np.split(reduce(np.add, xs), len(xs))


def _exchanged(xs: Arrays) -> Arrays:
    parts = [np.split(x, len(xs)) for x in xs]
    return [np.concatenate(received) for received in zip(*parts, strict=True)]


MEANINGS: dict[str, Meaning] = {
    "all_reduce-sum": _reduced(np.add),
    "all_reduce-max": _reduced(np.maximum),
    "all_reduce-min": _reduced(np.minimum),
    "all_reduce-product": _reduced(np.multiply),
    "all_reduce-and": _reduced(np.bitwise_and),
    "all_reduce-or": _reduced(np.bitwise_or),
    "all_reduce-xor": _reduced(np.bitwise_xor),
    "all_reduce-strided": _of_pairs,
    "all_gather": _gathered,
    "reduce_scatter": _scattered,
    "all_to_all": _exchanged,
    "broadcast": _reduced(np.add),  # of zeros, but for the root
    "dtensor-shard-to-replicate": _gathered,
    "dtensor-partial-to-replicate": _reduced(np.add),
    "dtensor-partial-to-shard": _scattered,
    "dtensor-shard-to-shard": _exchanged,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(topology: Topology, name: str) -> None:
    """Each of the program's four ranks is a device of this process."""
    import jax
    from jax._src.lib import xla_client

    recorded = PROGRAMS[name]
    assert recorded["form"] == "mlir"
    options = xla_client.CompileOptions.ParseFromString(base64.b64decode(recorded["options"]))
    assigned = DeviceAssignment.FromString(options.device_assignment.serialize())
    order = [device for part in assigned.partitions for device in part.replica_device_ids]
    assert sorted(order) == list(range(topology.total))
    devices = [jax.devices()[number] for number in order]
    executable = jax.devices()[0].client.compile_and_load(
        base64.b64decode(recorded["code"]), xla_client.DeviceList(tuple(devices)), options
    )
    (module,) = executable.hlo_modules()
    shape = xla_client.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
    (operand,) = shape.parameter_shapes()
    random = np.random.default_rng(0)
    inputs = [
        random.integers(-9, 9, operand.dimensions()).astype(operand.numpy_dtype()) for _ in order
    ]
    given = [jax.device_put(inputs[device.id], device) for device in devices]
    results = executable.execute_sharded([given])
    (received,) = results.disassemble_into_single_device_arrays()
    assert [array.device for array in received] == devices
    expected = MEANINGS[name](inputs)
    for array in received:
        np.testing.assert_array_equal(array, expected[array.device.id])
