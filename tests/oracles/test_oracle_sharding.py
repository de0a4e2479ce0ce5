"""The sharding oracle is JAX's placement, cut where padding begins; and it sees what differs.

One fresh interpreter runs all scenarios: JAX and torch_xla are not to be started where other tests
fork.
"""

import json
import os
import sys
from typing import Any

import pytest
from support.commands import run_program

pytestmark = pytest.mark.measures_coverage

PROGRAM = """
import dataclasses, json, os
os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
import jax
import numpy as np
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from jax.sharding import NamedSharding
from harness.oracles import sharding as oracle
from harness.oracles.sharding import Layout

grid = Layout((2, 2), (2, 0, 3, 1), ("x", "y"))
line = Layout((4,), (2, 0, 3, 1))

def bounds(layout, spec, shape):
    tiles = oracle.expected_tiles(layout, spec, shape)
    return {device: tile.bounds for device, tile in sorted(tiles.items())}

def buffers(layout, spec, shape):
    tiles = oracle.expected_tiles(layout, spec, shape)
    return sorted({tile.buffer for tile in tiles.values()})

def as_jax(layout, spec, shape):
    sharding = NamedSharding(layout.jax_mesh(), layout.partition_spec(spec))
    return {
        device.id: [part.indices(size)[:2] for part, size in zip(index, shape)]
        for device, index in sorted(
            sharding.devices_indices_map(shape).items(), key=lambda item: item[0].id
        )
    }

def error(function, *arguments):
    try:
        function(*arguments)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return "no error"

def marked(values, layout, spec):
    tensor = torch.from_numpy(values).to("xla")
    xs.mark_sharding(tensor, xs.Mesh(np.array(layout.device_ids), layout.shape, layout.names), spec)
    return tensor

def told(errors):
    return [f"{type(each).__name__}: {each}" for each in errors]

def errors_after(change):
    real = oracle.placed_shards
    tensor = marked(values, grid, ("x", None))
    oracle.placed_shards = lambda tensor: change(real(tensor))
    try:
        return told(oracle.placement_errors(tensor, values, grid, ("x", None)))
    finally:
        oracle.placed_shards = real

def with_first(placed, **fields):
    return placed | {0: dataclasses.replace(placed[0], **fields)}

values = np.arange(20.0, dtype=np.float32).reshape(5, 4)
result = {
    "line": bounds(line, (0,), (8,)),
    "uneven": bounds(line, (0,), (5,)),
    "uneven buffer": buffers(line, (0,), (5,)),
    "empty": buffers(line, (0, None), (0, 3)),
    "scalar": bounds(grid, (), ()),
    "tuple": bounds(grid, (("x", "y"),), (4,)),
    "tuple turned": bounds(grid, (("y", "x"),), (4,)),
    "replicated": bounds(grid, (None,), (4,)),
    "even": [
        [bounds(layout, spec, (8, 4)), as_jax(layout, spec, (8, 4))]
        for layout in (grid, dataclasses.replace(grid, names=None))
        for spec in ((0, 1), (1, 0), (None, 1), ((1, 0), None), (None, None))
    ],
    "axis twice": error(oracle.expected_tiles, grid, ("x", "x"), (4, 4)),
    "unknown axis": error(oracle.expected_tiles, grid, ("z",), (4,)),
    "too many devices": error(oracle.cpu_devices, 5),
}
xr.use_spmd()
good = marked(values, grid, ("x", None))
result |= {
    "good": oracle.placement_errors(good, values, grid, ("x", None)),
    "wrapped": oracle.placement_errors(xs.XLAShardedTensor(good), values, grid, ("x", None)),
    "bfloat16": oracle.as_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).tolist(),
    "other order": error(
        oracle.check_placement, good, values, Layout((2, 2), (0, 1, 2, 3), ("x", "y")), ("x", None)
    ),
    "other spec": error(oracle.check_placement, good, values, grid, (None, "x")),
    "other values": error(oracle.check_placement, good, values + 1, grid, ("x", None)),
    "other buffer": errors_after(lambda p: with_first(p, values=p[0].values[:1])),
    "other replica": errors_after(lambda p: with_first(p, replica=1 - p[0].replica)),
    "fewer devices": errors_after(lambda p: {d: s for d, s in p.items() if d}),
}
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    ran = run_program(sys.executable, "-c", PROGRAM, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.long
def test_devices_in_the_order_of_the_mesh(result):
    assert result["line"] == {"2": [[0, 2]], "0": [[2, 4]], "3": [[4, 6]], "1": [[6, 8]]}


def test_uneven_sizes_end_in_padding(result):
    assert result["uneven"] == {"2": [[0, 2]], "0": [[2, 4]], "3": [[4, 5]], "1": [[5, 5]]}
    assert result["uneven buffer"] == [[2]]
    assert result["empty"] == [[0, 3]]


def test_scalars_are_everywhere(result):
    assert result["scalar"] == {"0": [], "1": [], "2": [], "3": []}
    assert result["replicated"] == {d: [[0, 4]] for d in "0123"}


def test_the_order_of_a_tuple_counts(result):
    assert result["tuple"] == {"2": [[0, 1]], "0": [[1, 2]], "3": [[2, 3]], "1": [[3, 4]]}
    assert result["tuple turned"] == {"2": [[0, 1]], "3": [[1, 2]], "0": [[2, 3]], "1": [[3, 4]]}


def test_even_sizes_are_as_jax_says(result):
    assert len(result["even"]) == 10
    for ours, jax in result["even"]:
        assert ours == jax


def test_jax_refuses_wrong_specs(result):
    assert "duplicate entries for `x`" in result["axis twice"]
    assert "'z'" in result["unknown axis"]


def test_too_few_devices(result):
    assert (
        result["too many devices"] == "RuntimeError: JAX started with 4 CPU devices; 5 are needed"
    )


def test_devices_for_jax_that_has_no_option_for_them():
    """Before JAX 0.5 a flag of XLA's says how many, which nothing else is to see."""
    program = """
import os
from jaxlib import xla_client
from harness.oracles import jax_cpu
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
with jax_cpu._host_devices(20):
    client = xla_client.make_cpu_client()
print(len(client.local_devices()), os.environ["XLA_FLAGS"])
"""
    ran = run_program(sys.executable, "-c", program, timeout=200, check=True)
    assert ran.stdout.split() == ["20", "--xla_force_host_platform_device_count=2"]


def test_right_placements_pass(result):
    assert result["good"] == result["wrapped"] == []
    assert result["bfloat16"] == [1.5]


FAULTS = {
    "other order": "device 1 says it holds ((3, 5), (0, 4)), JAX puts ((0, 3), (0, 4))",
    "other spec": "device 0 says it holds ((0, 3), (0, 4)), JAX puts ((0, 5), (0, 2)) there",
    "other values": "device 0 holds [[0.0, 1.0",
    "other buffer": "device 0 has a buffer of (1, 4), expected (3, 4)",
    "other replica": "tile ((0, 3), (0, 4)) has the replica ids",
    "fewer devices": "shards on devices [1, 2, 3], JAX uses [0, 1, 2, 3]",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(result, fault):
    assert FAULTS[fault] in str(result[fault])
