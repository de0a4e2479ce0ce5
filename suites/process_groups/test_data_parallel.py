"""Three steps of PyTorch's own data parallelism, against the whole batch in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from suites.process_groups.training import OPTIMIZERS, Trained, check, in_one_process, net, train
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8521", "pytorch/xla#3431", "pytorch/xla#4648"),
]


@pytest.mark.long
@pytest.mark.parametrize("views", [True, False], ids=["views", "copies"])
def test_ddp(xla_target: Target, views: bool) -> None:
    """Ranks start with parameters of their own; DDP gives all of them those of rank 0.

    Gradients are views of DDP's buckets, as torch_xla's documentation asks for, or copies.
    """
    make, backend = OPTIMIZERS["sgd"], BACKENDS[xla_target.framework]

    def ask(number: int) -> Trained:
        device = backend.join()
        model = DistributedDataParallel(
            net(seed=7 + number).to(device), gradient_as_bucket_view=views
        )
        return train(model, make(model.parameters()), backend)

    ranks = run_ranks(ask, xla_target.topology)
    plain = net()
    check(ranks, in_one_process(plain, make(plain.parameters()), xla_target.topology.total))


FULLY_SHARD: dict[str, dict[str, Any]] = {
    "default": {},
    "kept": {"reshard_after_forward": False},
}


@pytest.mark.frameworks("torch_tpu")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", FULLY_SHARD)
def test_fully_shard(xla_target: Target, options: str, optimizer: str) -> None:
    """FSDP2 over parameters that no number of ranks divides: two layers apart, and both."""
    make, backend = OPTIMIZERS[optimizer], BACKENDS[xla_target.framework]

    def ask(_: int) -> Trained:
        device = backend.join()
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        model = net().to(device)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh, **FULLY_SHARD[options])
        return train(model, make(model.parameters()), backend)

    ranks = run_ranks(ask, xla_target.topology)
    plain = net()
    check(ranks, in_one_process(plain, make(plain.parameters()), xla_target.topology.total))


class Shifted(torch.nn.Module):
    """A model whose outputs are shifted by the sum of one more parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.net = net()
        self.shift = torch.nn.Parameter(torch.full(shape, 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(x) + self.shift.sum()
        return outputs


@pytest.mark.upstream("pytorch/xla#8522")
@pytest.mark.frameworks("torch_tpu")
@pytest.mark.parametrize("shape", [(1,), (5, 2)], ids=["one", "uneven"])
def test_fully_shard_shapes(xla_target: Target, shape: tuple[int, ...]) -> None:
    """A parameter with one element, and one with rows that the ranks don't divide.

    Of one without elements PyTorch's own FSDP2 makes no gradient, whatever the device.
    """
    make, backend = OPTIMIZERS["sgd"], BACKENDS[xla_target.framework]

    def ask(_: int) -> Trained:
        device = backend.join()
        model = Shifted(shape).to(device)
        fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        return train(model, make(model.parameters()), backend)

    ranks = run_ranks(ask, xla_target.topology)
    plain = Shifted(shape)
    check(ranks, in_one_process(plain, make(plain.parameters()), xla_target.topology.total))


@pytest.mark.frameworks("torch_tpu")
@pytest.mark.parametrize("sharded", [True, False], ids=["fsdp2", "ddp"])
def test_compiled(xla_target: Target, sharded: bool) -> None:
    """The same under `torch.compile`."""
    make, backend = OPTIMIZERS["sgd"], BACKENDS[xla_target.framework]

    def ask(_: int) -> Trained:
        device = backend.join()
        model: Any = net().to(device)
        if sharded:
            fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
        else:
            model = DistributedDataParallel(model)
        return train(torch.compile(model, backend="tpu"), make(model.parameters()), backend)

    ranks = run_ranks(ask, xla_target.topology)
    plain = net()
    check(ranks, in_one_process(plain, make(plain.parameters()), xla_target.topology.total))
