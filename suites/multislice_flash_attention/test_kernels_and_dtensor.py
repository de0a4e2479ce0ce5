"""Kernels of JAX as operators of TorchTPU: over the shards of a DTensor, and of donated tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.lanes.events import EventLog
from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.in_pytorch import (
    check_step,
    in_each_process,
    kernels_of,
)
from suites.multislice_flash_attention.problems import Problem, inputs

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8850"),
]


@pytest.fixture(autouse=True)
def needs_jax() -> None:
    """TorchTPU does not require it; imported here, it is not imported by each rank."""
    pytest.importorskip("jax")


@pytest.mark.parametrize("given", ["batch", "heads", "sequence", "replicated"])
def test_attention_of_shards(
    xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime, given: str
) -> None:
    """Whatever the placement of q, k and v, the kernel gets whole sequences of some heads.

    The gradients come back as the inputs were placed.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import local_map

    problem, world = Problem(batch=4, heads=4, causal=True), xla_target.topology.total
    kernels, host = kernels_of(xla_target), inputs(problem)
    placement = {
        "batch": Shard(0),
        "heads": Shard(1),
        "sequence": Shard(2),
        "replicated": Replicate(),
    }[given]
    inside = placement if given in {"batch", "heads"} else Shard(1)

    def ask(device: str) -> dict[str, torch.Tensor]:
        mesh = init_device_mesh(device, (world,))

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return kernels.flash(problem, {"q": q, "k": k, "v": v})

        whole = {name: tensor.to(device) for name, tensor in host.items()}
        of = {name: distribute_tensor(whole[name], mesh, [placement]) for name in "qkv"}
        leaves = {name: each.detach().requires_grad_() for name, each in of.items()}
        called = local_map(
            attend,
            out_placements=[inside],
            in_placements=([inside],) * 3,
            redistribute_inputs=True,
            device_mesh=mesh,
        )
        result = called(*leaves.values())
        result.backward(distribute_tensor(whole["do"], mesh, [inside]))
        tensors = {"output": result.detach()}
        for name, leaf in leaves.items():
            assert isinstance(leaf.grad, DTensor)
            tensors[name] = leaf.grad
        return {name: tensor.full_tensor().cpu() for name, tensor in tensors.items()}

    processes = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    check_step(processes, problem)


def _alone(donates: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return donates


def _summed(donates: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """No result has the size of what is donated."""
    return lambda x, y: donates(x, y).sum()


def _used_before(donates: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, y: x.sum() + donates(x, y)


@pytest.mark.topologies(1, "2x1")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("around", [_alone, _summed, _used_before], ids=lambda f: f.__name__[1:])
def test_donated(
    xla_target: Target,
    start_runtime: StartRuntime,
    around: Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]],
    compiled: bool,
) -> None:
    """What is donated is gone if a result can have its memory, and the other argument is not."""
    import jax
    from jax.experimental import pallas as pl
    from torch_tpu._internal.pallas import jax_op

    def kernel(x_ref, y_ref, sum_ref) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        sum_ref[...] = x_ref[...] + y_ref[...]

    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        result: jax.Array = pl.pallas_call(kernel, out_shape=shape)(x, y)
        return result

    add.__annotations__ = dict.fromkeys(("x", "y", "return"), jax.Array)
    donates = jax_op("xla_harness::donates", add, donate_argnums=(0,))
    host = torch.arange(2 * 8 * 128, dtype=torch.float32).reshape(2, 8, 128)

    def ask(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (tensor.to(device) for tensor in host)
        called = around(donates)
        if compiled:
            called = torch.compile(called, backend="tpu", fullgraph=True)
        result = called(x, y).cpu()
        if compiled and around is _summed:
            torch.testing.assert_close(x.cpu(), host[0], rtol=0, atol=0)
        else:
            with pytest.raises(RuntimeError, match="deleted or donated"):
                x.cpu()
        return result, y.cpu()

    expected = around(torch.add)(*host)
    for result, kept in in_each_process(ask, xla_target, start_runtime):
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(kept, host[1], rtol=0, atol=0)
