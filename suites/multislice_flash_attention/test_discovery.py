"""A job of several slices discovers them once, whatever kernel it runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.job.slices import run_slices
from harness.lanes.events import EventLog
from harness.model.mismatch import DiscoveryError
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.kernels import KERNELS, backward, forward

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8954", "pytorch/xla#8850"),
]
KERNEL = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
PASSES = pytest.mark.parametrize("kernel", [forward, backward], ids=["forward", "backward"])
# A second discovery waits for slices that never come: seconds until that is the outcome.
SOON = pytest.mark.environment(VIRTUAL_TPU_DEADLINE="5")


def over_slices(topology: Topology) -> dict[str, Any]:
    """Flash attention's arguments that shard the batch over slices and the heads inside of them.

    There are two heads: further devices of a slice have copies.
    """
    heads = min(topology.devices, 2)
    mesh = xs.HybridMesh(
        ici_mesh_shape=(1, heads, topology.devices // heads),
        dcn_mesh_shape=(topology.slices, 1, 1),
        axis_names=("data", "model", "copies"),
    )
    return {"partition_spec": ("data", "model", None, None), "mesh": mesh}


@KERNEL
@pytest.mark.topologies("2x1", "4x2")
def test_one_discovery(
    tpu_events: EventLog, start_runtime: StartRuntime, kernel: Callable[[], None]
) -> None:
    start_runtime(spmd=False)
    kernel()
    tpu_events.expect_discoveries(1)


@PASSES
@pytest.mark.topologies("2x2", "2x1", "2xv4:4", "2xv5e:4", "2xv5p:4")
def test_one_discovery_when_sharded(
    tpu_events: EventLog,
    topology: Topology,
    start_runtime: StartRuntime,
    kernel: Callable[[], None],
) -> None:
    """Sharded over slices and devices, on each generation."""
    start_runtime(spmd=True)
    kernel(**over_slices(topology))
    tpu_events.expect_discoveries(1)


@SOON
@pytest.mark.parametrize("kernel", [forward, backward, KERNELS["own-kernel"]])
@pytest.mark.topologies("2x1", "2x2", "3x1")
def test_one_discovery_of_processes(
    tpu_events: EventLog, topology: Topology, kernel: Callable[[], None]
) -> None:
    """A process for each slice: their first clients are one discovery together."""
    run_slices(lambda _: kernel(), topology, deadline=40)
    tpu_events.expect_discoveries(1)


@PASSES
@pytest.mark.topologies("2x2")
def test_no_discovery_in_the_second_step(
    tpu_events: EventLog,
    topology: Topology,
    start_runtime: StartRuntime,
    kernel: Callable[[], None],
) -> None:
    start_runtime(spmd=True)
    kernel(**over_slices(topology))
    first = tpu_events.read()
    kernel(**over_slices(topology))
    again = tpu_events.read().after(first)
    if clients := again.of("client"):
        raise DiscoveryError(f"clients in the second step: {clients}")
    tpu_events.expect_discoveries(1)


@pytest.mark.long
@pytest.mark.topologies("2x1")
def test_one_discovery_by_all_kernels(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    for kernel in KERNELS.values():
        kernel()
    tpu_events.expect_discoveries(1)


@pytest.mark.topologies("2x1")
def test_one_discovery_with_a_global_mesh(
    tpu_events: EventLog, topology: Topology, start_runtime: StartRuntime
) -> None:
    """The mesh is the job's, set once."""
    start_runtime(spmd=True)
    sharding = over_slices(topology)
    xs.set_global_mesh(sharding.pop("mesh"))
    forward(**sharding)
    tpu_events.expect_discoveries(1)


@pytest.mark.topologies("2x1")
def test_one_discovery_when_jax_was_imported_first(
    tpu_events: EventLog, start_runtime: StartRuntime
) -> None:
    """Importing JAX creates no client; only using it does."""
    start_runtime(spmd=False)
    import jax.numpy  # noqa: F401

    assert not tpu_events.read().of("client", by="jax")
    forward()
    tpu_events.expect_discoveries(1)


@KERNEL
@pytest.mark.topologies("1x4")
def test_one_slice_discovers_nothing(
    tpu_events: EventLog, start_runtime: StartRuntime, kernel: Callable[[], None]
) -> None:
    start_runtime(spmd=False)
    kernel()
    tpu_events.expect_discoveries(0)


@pytest.mark.topologies("2x1", "4x2")
def test_control_unguarded_jax_discovers_again(
    tpu_events: EventLog, start_runtime: StartRuntime
) -> None:
    """The counter counts: JAX used by itself, next to torch_xla, makes a second discovery."""
    start_runtime(spmd=False)
    import jax

    jax.devices()
    tpu_events.expect_discoveries(2)
    first, second = tpu_events.read().discoveries
    assert (first.by, second.by) == ("torch_xla", "jax")
    assert "jax.devices()" in (second.stack or ""), "the second discovery's stack names its cause"


@pytest.mark.topologies("2x1")
def test_control_guarded_jax_discovers_nothing(
    tpu_events: EventLog, start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a user can do about it: set the guard around the first use of JAX."""
    start_runtime(spmd=False)
    monkeypatch.setenv("SKIP_MEGASCALE_PJRT_CLIENT", "true")
    import jax

    jax.devices()
    assert len(tpu_events.read().of("client", by="jax")) == 1
    tpu_events.expect_discoveries(1)
    assert torch.ones(2).to("xla").sum().item() == 2
