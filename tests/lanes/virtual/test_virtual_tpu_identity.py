"""What torch_xla and JAX see of a virtual TPU, beside what libtpu says of the same topology."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime

pytestmark = pytest.mark.lanes("virtual-tpu")

SIZES = ["1x1", "1x2", "1x3", "4", "1x16", "2x1", "2x4", "3x2", "4x4", "4x16"]
# libtpu describes topologies without a device; v4 with both cores of a chip as one device.
ORACLE = """
import sys, json
from jax.experimental import topologies
name, options = sys.argv[1], json.loads(sys.argv[2])
found = topologies.get_topology_desc(name, "tpu", **options)
print(json.dumps([
    {
        "names": [str(device), repr(device)],
        "coords": list(device.coords),
        "core_on_chip": device.core_on_chip,
        "num_cores": device.num_cores,
        "slice_index": getattr(device, "slice_index", None),
        "kind": device.device_kind,
        "platform": device.platform,
        "version": device.client.platform_version,
    }
    for device in found.devices
]))
"""


def libtpu_says(name: str, **options: Any) -> list[dict[str, Any]]:
    ours = ("TPU_", "VIRTUAL_TPU_", "MEGASCALE_", "PJRT_", "XLA_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", ORACLE, name, json.dumps(options)],
        env=clean | {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    facts: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return facts


def virtual_tpu_says() -> list[dict[str, Any]]:
    import jax

    return [
        {
            "names": [str(device), repr(device)],
            "coords": list(device.coords),
            "core_on_chip": device.core_on_chip,
            "num_cores": device.num_cores,
            "slice_index": getattr(device, "slice_index", None),
            "kind": device.device_kind,
            "platform": device.platform,
            "version": device.client.platform_version,
        }
        for device in jax.devices()
    ]


TWINS = ("v4:4", "2xv4:8", "v5e:2x2", "2xv5e:2x2", "v5p:2x2x1", "v6e:2x4", "4xv6e:2x2")


@pytest.mark.topologies(*TWINS)
def test_devices_are_those_of_libtpu(topology: Topology) -> None:
    options: dict[str, Any] = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.generation == "v4":
        options["chip_config_name"] = "megacore"
    real, virtual = libtpu_says(topology.slice, **options), virtual_tpu_says()
    for device, other in zip(real, virtual, strict=True):
        # The runtime puts "PJRT C API" in front; a virtual TPU says that it is one.
        build = device.pop("version").split(" cl/")[0]
        assert f"\n{other.pop('version')}\n" == f"\nPJRT C API\n{build} virtual TPU\n"
        # A description has a process for each host, and wraps the names of several slices.
        names, others = device.pop("names"), other.pop("names")
        assert names == others or topology.slices > 1 or topology.chips > 4
        assert device == other


@pytest.mark.topologies("2xtpu7x:2x2x1")
def test_a_chip_of_tpu7x_is_two_devices(topology: Topology) -> None:
    """As libtpu 0.0.37 says; the one that is installed here may be older than tpu7x."""
    devices = virtual_tpu_says()
    assert len(devices) == topology.total == 16
    assert {device["kind"] for device in devices} == {"TPU7x"}
    assert {device["num_cores"] for device in devices} == {1}
    places = [(*device["coords"], device["core_on_chip"]) for device in devices[:8]]
    assert places == [(x, y, 0, core) for y in (0, 1) for x in (0, 1) for core in (0, 1)]
    assert [device["slice_index"] for device in devices] == [0] * 8 + [1] * 8


@pytest.mark.topologies(*SIZES)
def test_torch_xla_and_jax_see_the_topology(
    topology: Topology, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=True)
    import jax
    import torch_xla.runtime as xr

    of_torch = xr.global_runtime_device_attributes()
    assert len(of_torch) == topology.total == xr.global_runtime_device_count()
    for seen, device in zip(of_torch, jax.devices(), strict=True):
        assert seen["coords"] == list(device.coords)
        assert seen["core_on_chip"] == device.core_on_chip
        assert seen.get("slice_index") == getattr(device, "slice_index", None)
        assert ("slice_index" in seen) == (topology.slices > 1)
    places = {(seen.get("slice_index", 0), *seen["coords"]) for seen in of_torch}
    assert len(places) == topology.total
    assert {place[0] for place in places} == set(range(topology.slices))


@pytest.mark.topologies("4", "1x16", "2x4", "4x16")
def test_a_collective_runs_on_all_devices(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import jax
    import numpy as np
    import torch
    import torch_xla.distributed.spmd as xs
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    # Integers, so that the order of the sum can't matter.
    data = np.arange(topology.total * 3, dtype=np.float32).reshape(topology.total, 3)
    mesh = xs.Mesh(np.arange(topology.total), (topology.total,), ("x",))
    tensor = torch.from_numpy(data.copy()).to("xla")
    xs.mark_sharding(tensor, mesh, ("x", None))
    np.testing.assert_array_equal(tensor.sum(0).cpu().numpy(), data.sum(0))

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    summed = jax.jit(lambda x: x.sum(0))(jax.device_put(data, sharding))
    assert len(summed.sharding.device_set) == topology.total
    np.testing.assert_array_equal(np.asarray(summed), data.sum(0))


@pytest.mark.topologies("2x4", "4x4")
def test_meshes_put_slices_outside(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
    from jax.experimental import mesh_utils

    slices, (rows, two) = topology.slices, (2, topology.devices // 2)
    attributes = xr.global_runtime_device_attributes()
    hybrid = xs.HybridMesh(ici_mesh_shape=(1, rows, two), dcn_mesh_shape=(slices, 1, 1))
    of_torch = [
        [attributes[i]["slice_index"] for i in row.flat] for row in hybrid.get_logical_mesh()
    ]
    devices = mesh_utils.create_hybrid_device_mesh((1, rows, two), (slices, 1, 1))
    of_jax = [[device.slice_index for device in row.flat] for row in devices]
    assert of_torch == of_jax == [[number] * topology.devices for number in range(slices)]


@pytest.mark.topologies("v4:4", "v5e:4", "v5p:4", "v6e:4", "2")
def test_upstream_reads_the_generation(topology: Topology, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import torch_xla.runtime as xr
    from torch_xla._internal import tpu

    version = {"v4": 4, "v5e": 5, "v5p": 5, "v6e": 6}[topology.generation or "v6e"]
    assert tpu.version() == version
    assert tpu.num_available_chips() == topology.total
    assert xr.device_type() == "TPU"


def test_jax_lowers_for_the_libtpu_that_it_sees(topology: Topology) -> None:
    """As on a TPU machine, JAX asks how old the libtpu is: that of this stack."""
    import jax
    from jax._src.cloud_tpu_init import is_cloud_tpu_older_than

    assert is_cloud_tpu_older_than(2100, 1, 1)
    assert not is_cloud_tpu_older_than(2020, 1, 1)
    assert jax.devices()[0].platform == "tpu"
