"""Three steps of torch_xla's own data parallelism, against the whole batch in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_xla.core import functions as xf
from torch_xla.core import xla_model as xm
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from suites.process_groups.training import (
    OPTIMIZERS,
    STEPS,
    AllReduced,
    Trained,
    batch,
    check,
    in_one_process,
    net,
    own,
    probe,
    train,
)
from suites.shared.backends import TorchXla
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8521", "pytorch/xla#3431", "pytorch/xla#4648"),
]
XLA = TorchXla()


@pytest.mark.parametrize("pin_layout", [True, False], ids=["pinned", "free"])
def test_optimizer_step(topology: Topology, pin_layout: bool) -> None:
    """torch_xla's own data parallelism: `broadcast_master_param` and `optimizer_step`."""
    make = OPTIMIZERS["sgd"]

    def ask(number: int) -> Trained:
        device = XLA.join()
        model = net(seed=7 + number).to(device)
        xm.broadcast_master_param(model)
        return train(model, AllReduced(make(model.parameters()), pin_layout), XLA)

    ranks = run_ranks(ask, topology)
    plain = net()
    check(ranks, in_one_process(plain, make(plain.parameters()), topology.total))


ZERO: dict[str, dict[str, Any]] = {
    "default": {"grad_clipping": False},
    "clipped": {"max_norm": 0.5},
    "free": {
        "grad_clipping": False,
        "pin_layout": False,
        "use_grad_acc_hook": True,
        "higher_cc_precision": True,
    },
    "bucketed": {
        "grad_clipping": False,
        "pin_layout": False,
        "bucket_cap_mb_all_gather": 1,
        "bucket_cap_mb_reduce_scatter": 1,
    },
}


@pytest.mark.long
@pytest.mark.parametrize("options", ZERO)
def test_zero1(topology: Topology, options: str) -> None:
    """Adam, whose state each rank keeps a part of."""

    def ask(_: int) -> Trained:
        model = net().to(XLA.join())
        update = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, lr=0.01, **ZERO[options]
        )
        return train(model, update, XLA)

    ranks = run_ranks(ask, topology)
    plain = net()
    adam = OPTIMIZERS["adam"](plain.parameters())
    check(ranks, in_one_process(plain, adam, topology.total, clip=ZERO[options].get("max_norm")))


GROUPS = [[0, 2], [1, 3]]


def _in_groups(number: int) -> tuple[list[torch.Tensor], list[float], str]:
    """Train in groups of two ranks; return the parameters, losses and norms, and a refusal."""
    device = XLA.join()
    model = net().to(device)
    layers = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}]
    options = {"grad_norm_groups": [[0, 1], [2, 3]], "max_norm": 0.5, "lazy_init": True}
    update = ZeroRedundancyOptimizer(layers, torch.optim.SGD, lr=0.2, momentum=0.9, **options)
    update.sharding_groups = [[other for other in range(4) if other != number]]
    try:
        update.init_zero()
    except ValueError as error:
        refused = str(error)
    update.sharding_groups = GROUPS
    update.init_zero()
    numbers: list[float] = []
    for step in range(STEPS):
        x, y = (own(rows, number).to(device) for rows in batch(step, 4))

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            assert torch.is_grad_enabled()
            update.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        update.param_groups[1]["lr"] *= 0.5
        loss = update.step(closure)
        XLA.end_step()
        numbers += [loss.item(), update.grad_norm.item()]
    shapes = {n: p.shape for n, p in enumerate(model.parameters())}
    assert update.get_shape_info() == shapes
    return [p.detach().cpu() for p in model.parameters()], numbers, refused


@since_2_9
def test_zero1_in_groups(topology: Topology) -> None:
    """Each group trains by itself, but for the norm, which two ranks of both have together."""
    results = run_ranks(_in_groups, topology)
    models = [net(), net()]
    updates = [
        torch.optim.SGD(
            [{"params": m[0].parameters()}, {"params": m[2].parameters(), "lr": 0.05}],
            lr=0.2,
            momentum=0.9,
        )
        for m in models
    ]
    norms: list[float] = []
    for step in range(STEPS):
        for ranks, model, update in zip(GROUPS, models, updates, strict=True):
            x, y = (torch.cat([own(rows, rank) for rank in ranks]) for rows in batch(step, 4))
            update.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            update.param_groups[1]["lr"] *= 0.5
        norm = torch.nn.utils.clip_grad_norm_([p for m in models for p in m.parameters()], 0.5)
        for update in updates:
            update.step()
        norms.append(norm.item())
    for rank, (parameters, numbers, refused) in enumerate(results):
        assert f"Current rank {rank} is missing from the sharding_groups" in refused
        torch.testing.assert_close(numbers[1::2], norms, rtol=1e-4, atol=1e-4)
        expected = [p.detach() for p in models[rank % 2].parameters()]
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-4)


def _normed(*, last_in_training: bool) -> Trained:
    device = XLA.join()
    model = net(xf.SyncBatchNorm(7)).to(device)
    trained = train(model, AllReduced(OPTIMIZERS["sgd"](model.parameters())), XLA)
    if not last_in_training:
        return trained
    outputs = model.train()(probe().to(device))
    return Trained(trained.losses, outputs.detach().cpu())


@pytest.mark.long
@pytest.mark.upstream("pytorch/xla#2223")
def test_sync_batch_norm(topology: Topology) -> None:
    """Training normalizes by the statistics of all ranks' rows."""
    ranks = run_ranks(lambda _: _normed(last_in_training=True), topology)
    plain = net(torch.nn.BatchNorm1d(7))
    trained = in_one_process(plain, OPTIMIZERS["sgd"](plain.parameters()), topology.total)
    check(ranks, Trained(trained.losses, plain.train()(probe()).detach()))


@pytest.mark.long
@pytest.mark.upstream("pytorch/xla#2223")
def test_sync_batch_norm_in_inference(topology: Topology) -> None:
    """Inference normalizes by the running statistics, which are PyTorch's."""
    ranks = run_ranks(lambda _: _normed(last_in_training=False), topology)
    plain = net(torch.nn.BatchNorm1d(7))
    check(ranks, in_one_process(plain, OPTIMIZERS["sgd"](plain.parameters()), topology.total))
