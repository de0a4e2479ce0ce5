"""Groups of torch_xla's backend: which meshes it infers or is given, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_xla

from harness.job.ranks import run_ranks
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.shared.backends import TorchXla
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#3824"),
    since_2_9,
]
XLA = TorchXla()
INFERRED = {"xla_pg_options": {"spmd": True}}
# All groups of a shape between them have all ranks.
SHAPES: dict[str, list[Any]] = {
    "rows-of-2": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "rows-of-4": [range(4), range(4, 8)],
    "columns-of-2": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "columns-of-4": [range(0, 8, 2), range(1, 8, 2)],
    "alone": [[rank] for rank in range(8)],
    "all": [range(8)],
}
# In the order of the given mesh, which no rule infers.
GIVEN = [[0, 3], [1, 2], [4, 7], [5, 6]]
REFUSED: dict[str, tuple[list[int], str]] = {
    "does-not-divide": ([0, 1, 2], r"World size: 8, slice length: 3"),
    "uneven": ([0, 1, 2, 4], r"evenly distributed steps: \[0, 1, 2, 4\]"),
    "row-between-rows": ([1, 2], "horizontal slice doesn't have a correct start"),
    "column-too-far": ([4, 6], "vertical slice doesn't have a correct start"),
    "column-too-near": ([0, 2], "vertical slice doesn't have a correct step"),
}


def _of_rank(number: int) -> dict[str, Any]:
    device = XLA.join()
    answers: dict[str, Any] = {"backend": dist.get_backend(), "world": dist.get_world_size()}
    answers["name"] = dist.group.WORLD.getBackendName()
    for name, (ranks, _) in REFUSED.items():
        try:
            dist.new_group(ranks, pg_options=INFERRED)
        except ValueError as error:
            answers[name] = str(error)
    given = {"xla_pg_options": {"mesh": GIVEN}}
    shapes = [(name, shape, INFERRED) for name, shape in SHAPES.items()]
    sums, programs = {}, {}
    for name, shape, options in [*shapes, ("given", GIVEN, given)]:
        groups = [(ranks, dist.new_group(ranks, pg_options=options)) for ranks in shape]
        (own,) = [group for ranks, group in groups if number in ranks]
        x = torch.tensor([2.0**number], device=device)
        dist.all_reduce(x, group=own)
        sums[name] = x
        programs[name] = torch_xla._XLAC._get_xla_tensors_hlo([x])
    # Only a mesh needs a shape.
    some = [dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2], pg_options={"xla_pg_options": {}})]
    answers["some"] = [group.size() for group in some if number < 3]
    own = dist.new_group([6, 0, 7, 2, 1, 3, 5, 4])
    gathered = torch.zeros(8, device=device)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(number)], device=device), group=own)
    XLA.settle()
    answers |= {name: x.item() for name, x in sums.items()}
    return answers | {"programs": programs, "gathered": gathered.cpu().tolist()}


@pytest.mark.topologies("8@chip")
def test_shapes(topology: Topology, subtests: pytest.Subtests) -> None:
    """Each rank's group is its own one of the shape; what is no part of one is refused."""
    for rank, answers in enumerate(run_ranks(_of_rank, topology)):
        assert (answers["backend"], answers["world"], answers["name"]) == ("xla", 8, "xla")
        assert answers["some"] == ([3, 3] if rank < 3 else [])
        assert answers["gathered"] == [float(other) for other in range(8)]
        for name, shape in (SHAPES | {"given": GIVEN}).items():
            (own,) = [ranks for ranks in shape if rank in ranks]
            with subtests.test(name, rank=rank):
                assert answers[name] == sum(2.0**other for other in own)
                # All processes must submit one program, which has the groups of all of them.
                text = "},{".join(",".join(map(str, ranks)) for ranks in shape)
                assert f"replica_groups={{{{{text}}}}}" in answers["programs"][name]
        refused = {name: text for name, (ranks, text) in REFUSED.items() if rank in ranks}
        for name, message in refused.items():
            with subtests.test(name, rank=rank), pytest.raises(ValueError, match=message):
                raise ValueError(answers[name])


def _works(number: int) -> dict[str, Any]:
    device = XLA.join()
    x = torch.arange(4.0, device=device) + number
    reduced, gathered, part = (
        x.clone(),
        torch.zeros(16, device=device),
        torch.zeros(1, device=device),
    )
    works = {
        "all_reduce": dist.all_reduce(reduced, async_op=True),
        "all_gather": dist.all_gather_into_tensor(gathered, x, async_op=True),
        "reduce_scatter": dist.reduce_scatter_tensor(part, x, async_op=True),
        "broadcast": dist.broadcast(x, 2, async_op=True),
        "barrier": dist.barrier(async_op=True),
    }
    XLA.end_step()  # reduce pins its layout, which no step may have beside what does not
    works |= _others(number, device)
    waited = {name: work.wait() for name, work in works.items()}
    results = {name: work.get_future().value() for name, work in works.items()}
    refused = {}

    def refuse(name: str, call: Any) -> None:
        try:
            call()
        except (ValueError, NotImplementedError, RuntimeError) as error:
            refused[name] = f"{type(error).__name__}: {error}"

    ones, twos = torch.ones(1, device=device), torch.ones(2, device=device)
    refuse("parts", lambda: dist.reduce_scatter(ones, [ones, ones, twos, ones]))
    uneven = [[ones, twos, ones, ones]]
    coalesced = dist.group.WORLD.reduce_scatter_coalesced
    refuse("parts of a list", lambda: coalesced([ones], uneven, dist.ReduceScatterOptions()))
    refuse("shape", lambda: dist.all_gather_into_tensor(torch.zeros(3, 3, device=device), x))
    refuse("any-source", lambda: dist.recv(ones))
    refuse("monitored", lambda: dist.group.WORLD.monitored_barrier(None, False))
    refuse("average", lambda: dist.all_reduce(ones, dist.ReduceOp.AVG))
    XLA.settle()
    return {
        "values": [t.cpu().tolist() for t in (reduced, gathered, part, x)],
        "waited": waited,
        "results": {k: [t.cpu().tolist() for t in _listed(v)] for k, v in results.items()},
        "refused": refused,
    }


def _others(number: int, device: torch.device) -> dict[str, Any]:
    """Start the other collectives: some have a root, some take lists or numbers."""
    x = torch.arange(4.0, device=device) + number
    whole = x.sum()
    pieces = list(x.split(1))
    options = dist.ReduceScatterOptions()
    return {
        "reduce": dist.reduce(x.clone(), 1, async_op=True),
        "gather": dist.gather(x, _empty(x) if number == 2 else None, 2, async_op=True),
        "gather of numbers": dist.gather(
            whole, _empty(whole) if number == 1 else None, 1, async_op=True
        ),
        "all_gather of a list": dist.all_gather(_empty(x), x, async_op=True),
        "all_gather of numbers": dist.all_gather_into_tensor(
            torch.empty_like(x), whole, async_op=True
        ),
        "all_gather of rows": dist.all_gather_into_tensor(x.new_empty((4, 4)), x, async_op=True),
        "all_to_all": dist.all_to_all(_empty(pieces[0]), pieces, async_op=True),
        "all_to_all_single": dist.all_to_all_single(torch.empty_like(x), x, async_op=True),
        "reduce_scatter of a list": dist.reduce_scatter(
            torch.empty_like(pieces[0]), pieces, async_op=True
        ),
        "reduce_scatter of two lists": dist.group.WORLD.reduce_scatter_coalesced(
            [torch.empty_like(pieces[0]) for _ in range(2)], [pieces, pieces[::-1]], options
        ),
    }


def _empty(like: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(like) for _ in range(4)]


def _listed(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for each in value for tensor in _listed(each)]


def _results_of_others(rank: int) -> dict[str, Any]:
    """Return what ``_others`` must give, where rank r has the numbers r to r + 3."""
    inputs = [[float(n + other) for n in range(4)] for other in range(4)]
    sums = [4.0 * other + 6 for other in range(4)]  # of one rank, and of one place in all ranks
    exchanged = [float(rank + other) for other in range(4)]
    return {
        "reduce": [sums if rank == 1 else inputs[rank]],
        "gather": inputs if rank == 2 else [],
        "gather of numbers": sums if rank == 1 else [],
        "all_gather of a list": inputs,
        "all_gather of numbers": [sums],
        "all_gather of rows": [inputs],
        "all_to_all": [[number] for number in exchanged],
        "all_to_all_single": [exchanged],
        "reduce_scatter of a list": [[sums[rank]]],
        "reduce_scatter of two lists": [[sums[rank]], [sums[3 - rank]]],
    }


@pytest.mark.topologies("4@chip")
def test_started_collectives(topology: Topology) -> None:
    """What is waited for is there; the same tensors are what its future has."""
    for rank, answers in enumerate(run_ranks(_works, topology)):
        whole = [float(4 * n + 6) for n in range(4)]
        gathered = [float(n + other) for other in range(4) for n in range(4)]
        sent = [float(n + 2) for n in range(4)]
        assert answers["values"] == [whole, gathered, [whole[rank]], sent]
        assert set(answers["waited"].values()) == {True}
        assert answers["results"] == {
            "all_reduce": [whole],
            "all_gather": [gathered],
            "reduce_scatter": [[whole[rank]]],
            "broadcast": [sent],
            "barrier": [],
            **_results_of_others(rank),
        }
        refused = answers["refused"]
        assert refused["parts"].startswith("ValueError: Input 2's shape is different from input 0")
        assert refused["parts of a list"].startswith("ValueError: Input 1's shape is different")
        assert "not compatible for all_gather_into_tensor" in refused["shape"]
        assert refused["any-source"].startswith("NotImplementedError")
        assert refused["monitored"].startswith("NotImplementedError")
        assert "Invalid reduce op" in refused["average"]


@pytest.mark.topologies(4)
def test_no_backend_under_spmd(start_runtime: StartRuntime) -> None:
    """Under SPMD the collectives are the compiler's, and the backend refuses to start."""
    start_runtime(spmd=True)

    with pytest.raises(AssertionError, match="not supported with SPMD"):
        dist.init_process_group("xla", store=dist.HashStore(), rank=0, world_size=1)
    assert torch.ones(2, device="xla").sum().item() == 2


@pytest.mark.topologies(1)
def test_no_group_beside_another_default(start_runtime: StartRuntime) -> None:
    """A group of the backend has a mesh of all ranks, so that they must be its own."""
    import torch_xla.distributed.xla_backend  # noqa: F401 - registers backend "xla"

    start_runtime(spmd=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with pytest.raises(RuntimeError, match="requires the default ProcessGroup"):
        dist.new_group([0], backend="xla")
    assert torch.ones(2, device="xla").sum().item() == 2
