"""Frameworks take the devices of lane ``virtual-gpu`` for NVIDIA's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project

from harness.lanes.aot import cuda

CASES = """
import numpy as np

@pytest.mark.lanes("virtual-gpu")
@pytest.mark.topologies(4, "2xh200:4", "gb200:8")
def test_jax(topology):
    import jax, jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec
    devices = jax.devices()
    kind = {"": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200", "gb200": "NVIDIA GB200"}
    assert jax.default_backend() == "gpu"
    assert [*map(str, devices)] == [f"cuda:{n}" for n in range(topology.total)]
    assert [*map(repr, devices)] == [f"CudaDevice(id={n})" for n in range(topology.total)]
    assert [device.coords for device in devices] == [[n] for n in range(topology.total)]
    cores = 152 if topology.generation == "gb200" else 132
    assert {device.core_count for device in devices} == {cores}
    assert {device.fabric_uuid for device in devices} == {""}
    assert {device.device_kind for device in devices} == {kind[topology.generation]}
    assert {device.platform for device in devices} == {"gpu"}
    assert [device.slice_index for device in devices] == [
        n // topology.devices for n in range(topology.total)
    ]
    assert all(device.partition_index == device.slice_index for device in devices)
    capability = "10.0" if topology.generation == "gb200" else "9.0"
    assert {device.compute_capability for device in devices} == {capability}
    from jax._src.lib import cuda_versions
    assert cuda_versions.cuda_runtime_get_version() == 12090
    assert cuda_versions.cuda_device_count() == min(topology.total, 4)
    assert cuda_versions.cuda_compute_capability(0) == int(capability.replace(".", ""))
    mesh = Mesh(np.array(devices), "x")
    total = jax.jit(jax.shard_map(
        lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
    ))
    assert total(jnp.arange(float(topology.total))) == sum(range(topology.total))
"""


def test_jax_in_one_process(project: Project) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run("--lane", "virtual-gpu")
    assert ran.outcomes == {
        f"test_jax[virtual-gpu-{topology}]": "passed" for topology in ("4", "2xh200:4", "gb200:8")
    }, ran.stdout


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.8.1", "jax_cuda12_plugin 0.8.1 does not hand out what it has compiled: expected a"),
        ("0.8.3", ""),
    ],
)
def test_plugins_that_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, why: str
) -> None:
    folder = tmp_path / f"jax_cuda12_plugin-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: jax-cuda12-plugin\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cuda.missing().startswith(why)
    assert bool(cuda.missing()) == bool(why)
