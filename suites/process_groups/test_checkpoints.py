"""Saving and loading by rank: what every rank reads back trains on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_xla
from torch.distributed import checkpoint
from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel, consolidate_sharded_ckpts
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from suites.process_groups.training import (
    OPTIMIZERS,
    STEPS,
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
    pytest.mark.upstream("pytorch/xla#3431", "pytorch/xla#4648", "pytorch/xla#5492"),
]
XLA = TorchXla()

ADAM = OPTIMIZERS["adam"]


def _after(steps: int, ranks: int) -> Trained:
    """Train in plain PyTorch. It starts threads, so ranks must have been forked before."""
    plain = net()
    return in_one_process(plain, ADAM(plain.parameters()), ranks, range(steps))


def _outputs(model: torch.nn.Module) -> Trained:
    outputs = model.eval()(probe().to(torch_xla.device()))
    return Trained([], outputs.detach().cpu())


def _trained() -> torch.nn.Module:
    """Return the model after all steps of torch_xla's data parallelism."""
    model = net().to(XLA.join())
    train(model, AllReduced(ADAM(model.parameters())), XLA)
    return model


def test_one_file(topology: Topology, tmp_path: Path) -> None:
    """`xm.save`: the master writes, and all ranks read."""
    path = tmp_path / "model.pt"

    def ask(number: int) -> Trained:
        model = _trained()
        xm.save(model.state_dict(), str(path), global_master=True)
        payloads = xm.rendezvous("saved", bytes(1 + number))
        assert payloads == [bytes(1 + rank) for rank in range(topology.total)]
        other = net(seed=99).to(torch_xla.device())
        other.load_state_dict(torch.load(path, weights_only=True))
        return _outputs(other)

    check(run_ranks(ask, topology), Trained([], _after(STEPS, topology.total).outputs))


def test_file_of_each_rank(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP: each rank writes and reads its shards; all files together make a plain model."""

    def wrapped(seed: int) -> XlaFullyShardedDataParallel:
        return XlaFullyShardedDataParallel(net(seed=seed).to(torch_xla.device()))

    def ask(number: int) -> Trained:
        XLA.join()
        model = wrapped(seed=7)
        train(model, ADAM(model.parameters()), XLA)
        path = tmp_path / f"rank-{number}.pth"
        own = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
        xm.save(own, str(path), master_only=False)
        other = wrapped(seed=99)
        other.load_state_dict(torch.load(path, weights_only=False)["model"])
        return _outputs(other)

    ranks = run_ranks(ask, topology)
    expected = Trained([], _after(STEPS, topology.total).outputs)
    check(ranks, expected)
    whole, prefix = tmp_path / "whole.pt", f"{tmp_path}/rank-"
    options = ["--ckpt_prefix", prefix, "--ckpt_suffix=?.pth", "--save_path", str(whole)]
    monkeypatch.setattr("sys.argv", ["consolidate_sharded_ckpts", *options])
    consolidate_sharded_ckpts.main()
    plain = net(seed=99)
    plain.load_state_dict(torch.load(whole)["model"])
    check([Trained([], plain(probe()).detach())], expected)


def test_optimizer_of_each_rank(topology: Topology, tmp_path: Path) -> None:
    """ZeRO-1: the state that each rank keeps, into another optimizer that goes on."""

    def zero1(model: torch.nn.Module) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(
            model.parameters(),
            torch.optim.Adam,
            lr=0.01,
            grad_clipping=False,
            save_master_weights=True,
        )

    def ask(number: int) -> Trained:
        model = net().to(XLA.join())
        update = zero1(model)
        train(model, update, XLA, range(STEPS - 1))
        path = tmp_path / f"rank-{number}.pt"
        own = {"model": model.state_dict(), "optimizer": update.state_dict()}
        xm.save(own, str(path), master_only=False)

        saved = torch.load(path, weights_only=False)
        other = net(seed=99).to(torch_xla.device())
        other.load_state_dict(saved["model"])
        again = zero1(other)
        again.load_state_dict(saved["optimizer"])
        return train(other, again, XLA, range(STEPS - 1, STEPS))

    ranks = run_ranks(ask, topology)
    whole = _after(STEPS, topology.total)
    check(ranks, Trained(whole.losses[-1:], whole.outputs))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:torch.distributed is disabled")
@pytest.mark.parametrize("backend", ["xla", "gloo"])
def test_distributed_checkpoint(topology: Topology, tmp_path: Path, backend: str) -> None:
    """torch.distributed.checkpoint, which plans over the job's own group, or over one of gloo."""

    def ask(_: int) -> Trained:
        model = _trained()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        group = dist.new_group(backend="gloo") if backend == "gloo" else None
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        checkpoint.save(state, checkpoint_id=tmp_path, process_group=group)
        other = net(seed=99)
        restored = other.state_dict()
        checkpoint.load(restored, checkpoint_id=tmp_path, process_group=group)
        other.load_state_dict(restored)
        return _outputs(other.to(torch_xla.device()))

    check(run_ranks(ask, topology), Trained([], _after(STEPS, topology.total).outputs))
