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
    AllReduced,
    Trained,
    check,
    in_one_process,
    net,
    probe,
    train,
)
from suites.shared.backends import TorchXla

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


def _normed(*, last_in_training: bool) -> Trained:
    device = XLA.join()
    model = net(xf.SyncBatchNorm(7)).to(device)
    trained = train(model, AllReduced(OPTIMIZERS["sgd"](model.parameters())), XLA)
    if not last_in_training:
        return trained
    outputs = model.train()(probe().to(device))
    return Trained(trained.losses, outputs.detach().cpu())


@pytest.mark.upstream("pytorch/xla#2223")
def test_sync_batch_norm(topology: Topology) -> None:
    """Training normalizes by the statistics of all ranks' rows."""
    ranks = run_ranks(lambda _: _normed(last_in_training=True), topology)
    plain = net(torch.nn.BatchNorm1d(7))
    trained = in_one_process(plain, OPTIMIZERS["sgd"](plain.parameters()), topology.total)
    check(ranks, Trained(trained.losses, plain.train()(probe()).detach()))


@pytest.mark.upstream("pytorch/xla#2223")
def test_sync_batch_norm_in_inference(topology: Topology) -> None:
    """Inference normalizes by the running statistics, which are PyTorch's."""
    ranks = run_ranks(lambda _: _normed(last_in_training=False), topology)
    plain = net(torch.nn.BatchNorm1d(7))
    check(ranks, in_one_process(plain, OPTIMIZERS["sgd"](plain.parameters()), topology.total))
