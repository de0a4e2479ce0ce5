"""use_spmd called late, and what the runtime says of its devices under SPMD."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from harness.model.topology import Target, Topology
from harness.oracles.sharding import Layout, check_placement
from harness.session.fixtures import StartRuntime
from suites.shared.execution import settle
from suites.spmd_specs.meshes import marked, numbered, shuffled, xla_mesh

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.upstream("pytorch/xla#8973", "pytorch/xla#9735"),
    pytest.mark.filterwarnings("ignore:Replicating tensors already initialized"),
]

# What the runtime says of the lane's devices: their type, and their kind. A TPU's kind is what
# libtpu says of a v6e, a GPU's what its driver says of an H100.
DEVICES = {
    "cpu": ("CPU", "cpu"),
    "virtual-tpu": ("TPU", "TPU v6 lite"),
    "virtual-gpu": ("CUDA", "NVIDIA H100 80GB HBM3"),
}


def _device_kind() -> str:
    return xm.xla_device_kind()  # since torch_xla 2.6


def _beginnings() -> dict[str, Callable[[], object]]:
    """Return what a program may have done before it calls use_spmd."""
    return {
        "nothing": lambda: None,
        "asked-for-device": torch_xla.device,
        "asked-for-kind": _device_kind,
        "seeded": lambda: xm.set_rng_state(42),
        "made-tensor": lambda: numbered((4,)).to("xla"),
    }


def _start_late(start_runtime: StartRuntime, beginning: str) -> object:
    kept = _beginnings()[beginning]()
    start_runtime(spmd=True)
    return kept


@pytest.mark.long
@pytest.mark.topologies(4)
@pytest.mark.parametrize("beginning", _beginnings())
def test_late_unmarked(start_runtime: StartRuntime, beginning: str) -> None:
    """A tensor without a spec is replicated, as if SPMD had been on from the start."""
    kept = _start_late(start_runtime, beginning)
    tensor = numbered((4,)).to("xla")
    assert torch.equal((tensor + 1).cpu(), numbered((4,)) + 1)
    del kept


@pytest.mark.topologies(4)
@pytest.mark.parametrize("beginning", _beginnings())
def test_late_marked(topology: Topology, start_runtime: StartRuntime, beginning: str) -> None:
    kept = _start_late(start_runtime, beginning)
    layout = Layout((topology.devices,), shuffled(topology.devices), ("x",))
    tensor = marked(numbered((8,)), layout, ("x",))
    assert torch.equal((tensor + 1).cpu(), numbered((8,)) + 1)
    check_placement(tensor, numbered((8,)).numpy(), layout, ("x",))
    del kept


@pytest.mark.topologies(4)
@pytest.mark.parametrize("use", ["read", "compute", "mark", "combine"])
def test_late_old_tensor(topology: Topology, start_runtime: StartRuntime, use: str) -> None:
    """A tensor from before is replicated when SPMD starts (use_spmd's own words)."""
    old = numbered((8,)).to("xla")
    settle()
    _start_late(start_runtime, "nothing")
    layout = Layout((topology.devices,), shuffled(topology.devices), ("x",))
    if use == "mark":
        xs.mark_sharding(old, xla_mesh(layout), ("x",))
        check_placement(old, numbered((8,)).numpy(), layout, ("x",))
    elif use == "combine":
        result = old + marked(numbered((8,)), layout, ("x",))
        assert torch.equal(result.cpu(), numbered((8,)) * 2)
    else:
        result, expected = (
            (old + 1, numbered((8,)) + 1) if use == "compute" else (old, numbered((8,)))
        )
        assert torch.equal(result.cpu(), expected)


@pytest.mark.emulated
@pytest.mark.upstream("pytorch/xla#9535")
@pytest.mark.topologies(1, 4)
def test_device_type(xla_target: Target, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    expected, _ = DEVICES[xla_target.lane]
    assert xr.device_type() == expected
    assert xm.xla_device_hw(torch_xla.device()) == expected


@pytest.mark.emulated
@pytest.mark.upstream("pytorch/xla#9535")
@pytest.mark.topologies(1, 8)
def test_device_counts(topology: Topology, xla_target: Target, start_runtime: StartRuntime) -> None:
    """One virtual device for the program, all real ones behind it (pytorch/xla#5129)."""
    start_runtime(spmd=True)
    assert xr.is_spmd()
    assert str(torch_xla.device()) == "xla:0"
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xr.global_device_count() == xr.local_device_count() == 1
    assert xr.global_runtime_device_count() == topology.devices
    names = [attributes["name"] for attributes in xr.global_runtime_device_attributes()]
    type_, _ = DEVICES[xla_target.lane]
    assert names == [f"{type_}:{i}" for i in range(topology.devices)]


@pytest.mark.emulated
@pytest.mark.upstream("pytorch/xla#9535")
@pytest.mark.topologies(1, 4)
@pytest.mark.parametrize("mode", ["spmd", "replica"])
def test_device_kind(xla_target: Target, start_runtime: StartRuntime, mode: str) -> None:
    """The kind of hardware does not depend on SPMD."""
    start_runtime(spmd=mode == "spmd")
    _, expected = DEVICES[xla_target.lane]
    assert xm.xla_device_kind() == expected
