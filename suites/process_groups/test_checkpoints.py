"""Saving and loading by rank: what every rank reads back trains on as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.spmd as xs
from torch.distributed import checkpoint
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    consolidate_sharded_ckpts,
    consolidate_sharded_model_checkpoints,
)
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
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
from suites.shared.torch_xla_releases import since_2_9

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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


def _of_host(number: int, folder: Path) -> list[torch.Tensor]:
    xr.use_spmd()
    store = dist.FileStore(str(folder / "store"), 2)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=store, rank=number, world_size=2)
    mesh = xs.Mesh(range(8), (2, 4), ("host", "chip"))

    def state(sign: int, *specifications: tuple[str | None, str | None]) -> dict[str, Any]:
        values = [torch.arange(64.0).reshape(8, 8).mul(sign).to("xla") for _ in specifications]
        for value, specification in zip(values, specifications, strict=True):
            xs.mark_sharding(value, mesh, specification)
        torch_xla.sync()
        on_host = torch.arange(3.0) * sign
        return {"hosts": values[0], "chips": values[1], "host": on_host, "n": sign}

    manager = CheckpointManager(str(folder / "steps"), 1, chkpt_on_preemption=False)
    for sign in (-3, 2):
        manager.save(1, state(sign, ("host", "chip"), (None, "chip")))
    dist.barrier()
    target = state(0, ("chip", "host"), ("host", "chip"))
    manager.restore(1, target)
    assert (manager.all_steps(), target["n"]) == ([1, 1], 2)
    return [target[name].cpu() for name in ("hosts", "chips", "host")]


@since_2_9
@pytest.mark.topologies("8@host")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_manager_of_hosts(topology: Topology, tmp_path: Path) -> None:
    """Each host writes its shards, and the first one what all have; both read what they need."""
    (tmp_path / "steps").mkdir()  # both managers would create it, and the second one fail
    for got in run_ranks(lambda number: _of_host(number, tmp_path), topology):
        whole = torch.arange(64.0).reshape(8, 8) * 2
        torch.testing.assert_close(got, [whole, whole, torch.arange(3.0) * 2])
    metadata = checkpoint.FileSystemReader(tmp_path / "steps" / "1").read_metadata()
    writers = {
        (index.fqn, *(index.offset or ())): info.relative_path[2]
        for index, info in metadata.storage_data.items()
    }
    shards = {("hosts", 4 * n, 2 * m): str(n) for n in range(2) for m in range(4)}
    shards |= {("chips", 0, 2 * n): "0" for n in range(4)}
    assert writers == shards | {("host", 0): "0", ("n",): "0"}
    sizes = [len((tmp_path / "steps" / "1" / f"__{n}_0.distcp").read_bytes()) for n in range(2)]
    assert sizes[1] < sizes[0]


@since_2_9
@pytest.mark.topologies(1)
@pytest.mark.parametrize("flat", [False, True], ids=["parameters", "flat"])
def test_consolidated_files(
    start_runtime: StartRuntime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flat: bool,
) -> None:
    """Files of all ranks, and no others, become one; where it is written is by default beside."""
    start_runtime(spmd=False)
    model = XlaFullyShardedDataParallel(net(torch.nn.BatchNorm1d(7)), flatten_parameters=flat)
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    saved = {"model": state, "shard_metadata": model.get_shard_metadata()}
    prefix = f"{tmp_path}/rank-"
    torch.save(saved, f"{prefix}0.pth")
    whole, path = consolidate_sharded_model_checkpoints(prefix, save_model=False)
    assert path is None
    assert len(list(tmp_path.iterdir())) == 1
    expected = net(torch.nn.BatchNorm1d(7)).state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(whole.pop(name), value)
    assert not whole
    monkeypatch.setattr("sys.argv", ["consolidate_sharded_ckpts", "--ckpt_prefix", prefix])
    consolidate_sharded_ckpts.main()
    written = tmp_path / "rank-_consolidated.pth"
    loaded = torch.load(written)["model"]
    assert sorted(loaded) == sorted(expected)
    written.unlink()
    with pytest.raises(AssertionError, match=r"Cannot find any files matching .*none"):
        consolidate_sharded_model_checkpoints(prefix, "none")
    torch.save(saved, f"{prefix}1.pth")
    with pytest.raises(AssertionError, match=r"Expecting 1 files .* but got 2 files"):
        consolidate_sharded_model_checkpoints(prefix)
    saved["shard_metadata"]["world_size"] = 2
    for number in range(2):
        torch.save(saved, f"{prefix}{number}.pth")
    with pytest.raises(AssertionError, match=r"Expecting rank 0 .* ranked 1 \(out of 2 files"):
        consolidate_sharded_model_checkpoints(prefix)
    for arguments in ([], ["--help"]):
        monkeypatch.setattr("sys.argv", ["consolidate_sharded_ckpts", *arguments])
        with pytest.raises(SystemExit):
            consolidate_sharded_ckpts.main()
    printed = capsys.readouterr()
    assert "arguments are required: --ckpt_prefix" in printed.err
    assert f"found 1 checkpoint files in {prefix}*.pth" in printed.out
    assert f"saved consolidated model to {written}" in printed.out
    for text in ("path prefix of", "path suffix of", "save path of the output"):
        assert f"The {text}" in " ".join(printed.out.split())
