"""What torch_xla's core does in a job's step: autograd, buckets, closures, and Python objects."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla import runtime as xr
from torch_xla.core import functions as xf
from torch_xla.core import xla_model as xm

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from suites.shared.backends import join_replicas
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#3431", "pytorch/xla#1654"),
]


def _leaves(world: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Return each rank's input: other numbers on each, of both signs and none of them zero."""
    random = torch.Generator().manual_seed(42)
    return [torch.randn(shape, generator=random) for _ in range(world)]


Reduce = Callable[[torch.Tensor], torch.Tensor]
REDUCERS: dict[str, Reduce] = {
    "sum": lambda stacked: stacked.sum(0),
    "mul": lambda stacked: stacked.prod(0),
    "min": lambda stacked: stacked.amin(0),
    "max": lambda stacked: stacked.amax(0),
}


def _own_gradient(
    function: Reduce, leaves: Sequence[torch.Tensor], rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a function of all ranks' inputs, and the gradient of its sines by this rank's own."""
    own = leaves[rank].clone().requires_grad_()
    result = function(torch.stack([*leaves[:rank], own, *leaves[rank + 1 :]]))
    result.sin().sum().backward()
    assert own.grad is not None
    return result.detach(), own.grad


def _of_rank(function: Reduce, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    own = leaf.to(torch_xla.device()).requires_grad_()
    result = function(own)
    result.sin().sum().backward()
    torch_xla.sync()
    assert own.grad is not None
    return result.detach().cpu(), own.grad.cpu()


Results = dict[str, tuple[torch.Tensor, torch.Tensor]]


def test_gradients(topology: Topology, subtests: pytest.Subtests) -> None:
    """A rank's gradient is that of its own result by its own input, the others' being constant."""
    leaves, world = _leaves(topology.total, (3, 4)), topology.total
    functions: dict[str, tuple[Reduce, Reduce]] = {
        **{name: (partial(xf.all_reduce, name), REDUCERS[name]) for name in REDUCERS},
        "scaled": (lambda x: xf.all_reduce("sum", x, scale=0.5), lambda xs: xs.sum(0) * 0.5),
        "gathered": (lambda x: xf.all_gather(x, 1), lambda xs: torch.cat(list(xs), 1)),
        "rows": (xf.all_gather, lambda xs: xs.flatten(0, 1)),
    }
    every_second = partial(xf.all_reduce, "sum", groups=[[0, 2], [1, 3]])

    def ask(number: int) -> Results:
        join_replicas()
        own = {name: function for name, (function, _) in functions.items()}
        return {
            name: _of_rank(function, leaves[number])
            for name, function in (own | {"groups": every_second}).items()
        }

    ranks = run_ranks(ask, topology)
    for rank, results in enumerate(ranks):
        group = [leaves[rank % 2], leaves[rank % 2 + 2]]
        expected = _own_gradient(REDUCERS["sum"], group, rank // 2)
        with subtests.test("groups", rank=rank):
            torch.testing.assert_close(results["groups"], expected, rtol=1e-4, atol=1e-5)
    for name, (_, whole) in functions.items():
        with subtests.test(name):
            for rank in range(world):
                expected = _own_gradient(whole, leaves, rank)
                torch.testing.assert_close(ranks[rank][name], expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_scaled(topology: Topology, subtests: pytest.Subtests) -> None:
    """``scale`` multiplies the result, and so the gradient."""
    leaves, reducers = _leaves(topology.total, (3, 4)), ("mul", "min", "max")

    def ask(number: int) -> Results:
        join_replicas()
        return {
            name: _of_rank(partial(xf.all_reduce, name, scale=0.5), leaves[number])
            for name in reducers
        }

    ranks = run_ranks(ask, topology)
    for name in reducers:

        def scaled(xs: torch.Tensor, reduce: Reduce = REDUCERS[name]) -> torch.Tensor:
            return reduce(xs) * 0.5

        with subtests.test(name):
            for rank, got in enumerate(ranks):
                expected = _own_gradient(scaled, leaves, rank)
                torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-5)


def _reduced_in_buckets(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    given = [torch.from_numpy(x).to(torch_xla.device()) for x in inputs]
    output = [x.new_empty((len(x) // 4, *x.shape[1:])) for x in given]
    xm.reduce_scatter_bucketized("sum", given, 0.5, 0, 4, output=output, bucket_cap_mb=1)
    again = xm.reduce_scatter_bucketized("sum", given, 0.5, 0, 4, bucket_cap_mb=1)
    return [x.cpu().numpy() for x in (*output, *again)]


def test_reduce_scatter_in_buckets(topology: Topology) -> None:
    """Into given tensors and into new ones; two of three fit a bucket, which are one collective."""
    whole = np.arange(2**18, dtype=np.float32).reshape(-1, 2) % 251
    sizes = (4, 64, 2**17)

    def ask(number: int) -> list[np.ndarray]:
        join_replicas()
        return _reduced_in_buckets([whole[:size] * (number + 1) for size in sizes])

    for rank, got in enumerate(run_ranks(ask, topology)):
        parts = [np.split(whole[:size] * 5, 4)[rank] for size in sizes]  # 1 + 2 + 3 + 4, halved
        for result, expected in zip(got, parts * 2, strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.long
def test_layers(topology: Topology, subtests: pytest.Subtests) -> None:
    """A weight whose columns are divided among ranks, and a norm of all ranks' images."""
    world, random = topology.total, torch.Generator().manual_seed(7)
    weight = torch.randn(3, 2 * world, generator=random)
    factors = torch.randn(world, 2 * world, 4, generator=random)
    images = torch.stack(_leaves(world, (2, 3, 4, 5)))

    def ask(number: int) -> list[torch.Tensor]:
        device = join_replicas()
        own, factor, image = (
            x.to(device)
            for x in (weight[:, 2 * number : 2 * number + 2], factors[number], images[number])
        )
        norm = xf.SyncBatchNorm(3, eps=0.1, momentum=0.4).to(device)
        results = [xf.distributed_mm(own, factor, n) for n in (1, 2)]
        results += [norm(image / 2), norm(image), norm.eval()(image)]
        return [x.detach().cpu() for x in results]

    ranks = run_ranks(ask, topology)
    mean = images.mean((0, 1, 3, 4))[:, None, None]
    var = images.var((0, 1, 3, 4), correction=0)[:, None, None]
    for rank, results in enumerate(ranks):
        product = weight @ factors[rank]
        trained = (images[rank] - mean) / (var + 0.1).sqrt()
        halved = (images[rank] - mean) / 2 / (var / 4 + 0.1).sqrt()
        # After the batch of halves, and then the whole one.
        running_mean = 0.6 * (0.4 * mean / 2) + 0.4 * mean
        running_var = 0.6 * (0.6 + 0.4 * var / 4) + 0.4 * var
        running = (images[rank] - running_mean) / (running_var + 0.1).sqrt()
        names = ("product", "in-halves", "of-halves", "trained", "running")
        oracles = (product, product, halved, trained, running)
        for name, got, expected in zip(names, results, oracles, strict=True):
            with subtests.test(name, rank=rank):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def _objects(number: int, folder: Path) -> dict[str, Any]:
    # Set by torch_xla's own launchers, for processes of one host.
    os.environ |= {"PJRT_LOCAL_PROCESS_RANK": str(number), "PJRT_LOCAL_PROCESS_COUNT": "4"}
    device = join_replicas()
    x = torch.tensor([float(number), 1.0], device=device)
    answers: dict[str, Any] = {
        "ordinals": (xr.global_ordinal(), xr.local_ordinal(), xm.get_local_ordinal()),
        "sizes": (xr.world_size(), xr.global_device_count(), xr.local_device_count()),
        "processes": (xr.process_index(), xr.process_count(), xr.local_process_count()),
        "devices": (xr.addressable_device_count(), xm.get_xla_supported_devices(1)),
        "masters": (xm.is_master_ordinal(), xm.is_master_ordinal(local=False)),
        "reduced": xm.mesh_reduce("sum", {"x": x * 2, "n": number}, _total),
        "run": xm.do_on_ordinals(lambda y: y.tolist(), (x + 1,), ordinals=(1, 2)),
    }
    xm.save({"x": [x, (x * 3,)]}, folder / f"{number}.pt", master_only=False)
    xm.save(x, folder / "master.pt", global_master=True)
    xm.rendezvous("saved")
    answers["saved"] = torch.load(folder / f"{number}.pt")["x"]
    answers["master"] = torch.load(folder / "master.pt")
    closed: list[Any] = []
    xm.add_step_closure(lambda *given: closed.append([v.item() for v in given]), (x[0], x[1] + 1))
    xm.add_step_closure(lambda: closed.append("second"))
    xm.add_step_closure(lambda: closed.append("later"), run_async=True)
    answers["before"] = list(closed)
    torch_xla.sync()
    until = time.monotonic() + 10
    while "later" not in closed and time.monotonic() < until:
        time.sleep(0.01)  # a thread calls it
    answers["closed"] = sorted(map(str, closed))
    torch_xla.sync()
    answers["once"] = len(closed)
    return answers


def _total(payloads: list[dict[str, Any]]) -> tuple[list[float], list[int]]:
    return sum(p["x"] for p in payloads).tolist(), [p["n"] for p in payloads]


@since_2_9
def test_objects(topology: Topology, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Who a rank is, what ranks tell each other, what they save, and what a step's end calls."""
    ranks = run_ranks(lambda number: _objects(number, tmp_path), topology)
    for rank, answers in enumerate(ranks):
        x = [float(rank), 1.0]
        expected = {
            "ordinals": (rank, rank, rank),
            "sizes": (4, 4, 4),
            "processes": (rank, 4, 4),
            "devices": (1, ["xla:0"]),
            "masters": (rank == 0, rank == 0),
            "reduced": ([12.0, 8.0], [0, 1, 2, 3]),
            "run": [x[0] + 1, 2.0] if rank in {1, 2} else None,
            "before": [],
            "closed": sorted([str([x[0], 2.0]), "later", "second"]),
            "once": 3,
        }
        for name, value in expected.items():
            with subtests.test(name, rank=rank):
                assert answers[name] == value
        first, (second,) = answers["saved"]
        torch.testing.assert_close([first, second], [torch.tensor(x), torch.tensor(x) * 3])
        torch.testing.assert_close(answers["master"], torch.tensor([0.0, 1.0]))
        assert first.device.type == answers["master"].device.type == "cpu"
