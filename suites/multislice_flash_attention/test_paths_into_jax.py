"""Every other way by which torch_xla reaches JAX: which clients it makes, and one discovery."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla.core import xla_builder as xb
from torch_xla.debug import profiler

from harness.lanes.events import EventLog
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.torchax_without_flax import import_torchax

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.upstream("pytorch/xla#8954", "pytorch/xla#8850", "pytorch/xla#8971"),
]
# torch_xla 2.9.0 ships torchax without flax, which it imports: these are refused as released.
NO_TORCHAX = "Jax is required for this feature"


def mesh() -> xs.Mesh:
    return xs.Mesh(np.arange(4), (2, 2), ("x", "y"))


def square() -> torch.Tensor:
    return torch.arange(16.0).reshape(4, 4).to("xla")


def call_jax() -> torch.Tensor:
    """X + 1, by JAX."""
    return xb.call_jax(_plus_one, (square(),))


def _plus_one(x: Any) -> Any:
    return x + 1


def shard_as() -> torch.Tensor:
    """One of two tensors is sharded, so both are."""
    first, second = square(), square()
    xs.mark_sharding(first, mesh(), ("x", "y"))
    return xs.shard_as(first, second)[1] + 1


def assume_pure() -> torch.Tensor:
    """X + 1, traced once."""
    from torch_xla.experimental.assume_pure import assume_pure

    return assume_pure(_plus_one)(square())


def scan_rows() -> torch.Tensor:
    """Row by row: x + 1."""
    from torch_xla.experimental.scan import scan

    return scan(lambda carry, row: (carry * 1, row + carry), torch.ones(4).to("xla"), square())[1]


def scan_two_layers() -> torch.Tensor:
    """Two layers that each add 0.5."""
    from torch_xla.experimental.scan_layers import scan_layers

    layers = [_Half().to("xla") for _ in range(2)]
    return scan_layers(layers, square())


class _Half(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor([0.5] * 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


def jax_mesh() -> torch.Tensor:
    """Convert the mesh to JAX's, which reads JAX's devices."""
    converted = mesh().get_jax_mesh()
    assert [device.id for device in converted.devices.flat] == [0, 1, 2, 3]
    return square() + 1


def trace() -> torch.Tensor:
    """X + 1 under a name for the profiler, which is JAX's named_scope too."""
    with profiler.Trace("attention"):
        return square() + 1


def step_trace() -> torch.Tensor:
    """X + 1 in a step of the profiler's."""
    with profiler.StepTrace("train", step_num=1):
        return square() + 1


def mark_sharding() -> torch.Tensor:
    """Mark a sharding, which looks for torchax: torch_xla shards torchax's tensors by JAX."""
    x = square()
    xs.mark_sharding(x, mesh(), ("x", "y"))
    return x + 1


def mark_gradients() -> torch.Tensor:
    """As above, with the gradient's."""
    return xs.mark_sharding_with_gradients(square(), mesh(), ("x", "y")) + 1


ALONE = {  # no JAX client
    "scan": scan_rows,
    "scan_layers": scan_two_layers,
    "Trace": trace,
    "StepTrace": step_trace,
    "mark_sharding": mark_sharding,
    "mark_sharding_with_gradients": mark_gradients,
}
BY_TORCHAX = {"call_jax": call_jax, "shard_as": shard_as, "assume_pure": assume_pure}
WITH_CLIENT = {"get_jax_mesh": jax_mesh}


def assert_plus_one(result: torch.Tensor) -> None:
    torch_xla.sync()
    torch.testing.assert_close(result.cpu(), torch.arange(1, 17.0).reshape(4, 4))


def torchax_works() -> bool:
    """Whether torchax can be imported, as released: torch_xla 2.8's can."""
    try:
        import torchax  # noqa: F401
    except ImportError:
        return False
    return True


def clients(tpu_events: EventLog) -> list[str]:
    return [event.by for event in tpu_events.read().of("client")]


@pytest.mark.parametrize("path", ALONE.values(), ids=ALONE)
def test_creates_no_client(
    tpu_events: EventLog, start_runtime: StartRuntime, path: Callable[[], torch.Tensor]
) -> None:
    start_runtime(spmd=True)
    assert_plus_one(path())
    assert clients(tpu_events) == ["torch_xla"]
    tpu_events.expect_discoveries(1)


@pytest.mark.parametrize("path", WITH_CLIENT.values(), ids=WITH_CLIENT)
def test_creates_a_guarded_client(
    tpu_events: EventLog, start_runtime: StartRuntime, path: Callable[[], torch.Tensor]
) -> None:
    start_runtime(spmd=True)
    assert_plus_one(path())
    assert clients(tpu_events) == ["torch_xla", "jax"]
    tpu_events.expect_discoveries(1)


@pytest.mark.parametrize("path", BY_TORCHAX.values(), ids=BY_TORCHAX)
def test_works_as_released(start_runtime: StartRuntime, path: Callable[[], torch.Tensor]) -> None:
    """With the packages that torch_xla's wheel and its extras bring."""
    start_runtime(spmd=True)
    assert_plus_one(path())


@pytest.mark.parametrize("path", BY_TORCHAX.values(), ids=BY_TORCHAX)
def test_refused_call_creates_no_client(
    tpu_events: EventLog, start_runtime: StartRuntime, path: Callable[[], torch.Tensor]
) -> None:
    """Where torchax can't be imported the call says so, and JAX creates no client."""
    start_runtime(spmd=True)
    if torchax_works():
        pytest.skip("torchax can be imported: nothing is refused")
    with pytest.raises(AssertionError, match=f"^{NO_TORCHAX}$"):
        path()
    assert clients(tpu_events) == ["torch_xla"]
    tpu_events.expect_discoveries(1)


@pytest.mark.parametrize("path", BY_TORCHAX.values(), ids=BY_TORCHAX)
def test_one_discovery_with_torchax(
    tpu_events: EventLog, start_runtime: StartRuntime, path: Callable[[], torch.Tensor]
) -> None:
    """Its JAX client, if it makes one, is guarded."""
    start_runtime(spmd=True)
    import_torchax()
    assert_plus_one(path())
    assert clients(tpu_events).count("torch_xla") == 1
    tpu_events.expect_discoveries(1)


@pytest.mark.parametrize("path", [mark_sharding, trace], ids=["mark_sharding", "Trace"])
def test_no_client_with_torchax(
    tpu_events: EventLog, start_runtime: StartRuntime, path: Callable[[], torch.Tensor]
) -> None:
    """Importing torchax and JAX is not yet using JAX's devices."""
    start_runtime(spmd=True)
    import_torchax()
    assert_plus_one(path())
    assert clients(tpu_events) == ["torch_xla"]
    tpu_events.expect_discoveries(1)


def test_torchax_tensor_is_sharded_by_jax(
    tpu_events: EventLog,
    start_runtime: StartRuntime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """mark_sharding of torchax's own tensor; to make one is JAX's work, which the user guards."""
    start_runtime(spmd=True)
    torchax = import_torchax()
    if torchax is None:
        pytest.skip("before 2.8 torch_xla has no torchax")
    with monkeypatch.context() as guard:
        guard.setenv("SKIP_MEGASCALE_PJRT_CLIENT", "true")
        with torchax.default_env():
            value = torch.ones(4, 4, device="jax")
    xs.mark_sharding(value, mesh(), ("x", "y"))
    assert {shard.data.shape for shard in value.jax().addressable_shards} == {(2, 2)}
    assert clients(tpu_events) == ["torch_xla", "jax"]
    tpu_events.expect_discoveries(1)


def test_all_paths_together(
    tpu_events: EventLog, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    """One process goes all of them: one client of each library."""
    start_runtime(spmd=True)
    import_torchax()
    for name, path in (ALONE | WITH_CLIENT | BY_TORCHAX).items():
        with subtests.test(path=name):
            assert_plus_one(path())
    with subtests.test("clients"):
        assert clients(tpu_events) == ["torch_xla", "jax"]
        tpu_events.expect_discoveries(1)
