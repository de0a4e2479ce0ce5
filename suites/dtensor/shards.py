"""Reading what torch_xla placed, and holding it against what DTensor's ranks hold."""

import torch
from torch_xla.distributed.spmd import XLAShardedTensor
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor, wrap_as_sharded_tensor

from harness.oracles.dtensor import Held
from suites.shared.execution import settle


def host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a plain tensor on the host."""
    with torch.no_grad():
        return unwrap_sharded_tensor(tensor.cpu())


def assert_functionalization(*, on: bool) -> None:
    """Fail unless XLA tensors are functional tensors, or are not: the case asked for it."""
    assert torch._is_functional_tensor(torch.ones(1, device="xla")) == on


def device_shards(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return each device's shard without padding, in device order."""
    settle()
    sharded = tensor if isinstance(tensor, XLAShardedTensor) else wrap_as_sharded_tensor(tensor)
    shards = {int(s.shard_device.rpartition(":")[2]): s.unpadded_data for s in sharded.local_shards}
    return [shards[device] for device in sorted(shards)]


def assert_held(tensor: torch.Tensor, held: Held, label: str) -> None:
    """Fail unless device *i* holds exactly what rank *i* holds."""
    _compare(tensor, held, label, exact=True)


def assert_close_to_held(tensor: torch.Tensor, held: Held, label: str) -> None:
    """Fail unless device *i* holds what rank *i* holds up to rounding."""
    _compare(tensor, held, label, exact=False)


def assert_value(tensor: torch.Tensor, expected: torch.Tensor, label: str) -> None:
    """Fail unless the global tensor is the expected one up to rounding."""
    got = host(tensor)
    assert got.shape == expected.shape, f"{label} is {list(got.shape)}, not {list(expected.shape)}"
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-5), (
        f"{label} differs, {difference(got, expected)}"
    )


def _compare(tensor: torch.Tensor, held: Held, label: str, *, exact: bool) -> None:
    got = device_shards(tensor)
    sizes, expected = [tuple(s.shape) for s in got], [tuple(s.shape) for s in held.shards]
    assert sizes == expected, (
        f"{label}: the devices hold shards of {sizes}, DTensor's ranks {expected}"
    )
    for device, (shard, reference) in enumerate(zip(got, held.shards, strict=True)):
        assert shard.dtype == reference.dtype, (
            f"{label}: device {device} holds {shard.dtype}, DTensor's rank {reference.dtype}"
        )
        tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-6}
        assert torch.allclose(shard, reference, **tolerance), (
            f"{label}: device {device} differs from DTensor's rank, {difference(shard, reference)}"
        )


def difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    """Say where two tensors of one shape differ most."""
    distance = (got.to(torch.complex128) - expected.to(torch.complex128)).abs()
    index = tuple(int(i) for i in torch.unravel_index(distance.argmax(), got.shape))
    return f"at {list(index)} {got[index].item()} instead of {expected[index].item()}"
