"""`all_to_all`, `collective_permute` and broadcast: data moves, and nothing is reduced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_xla
from torch_xla.core import xla_model as xm

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups
from suites.collectives.programs import export, trace
from suites.shared.comparison import check_numbers
from suites.shared.groups import EVEN_LAYOUTS, layout, lists
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import DTYPES, columns, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8815")]

functional = torch.ops._c10d_functional


def _pairs(name: str, world: int) -> list[list[int]]:
    return {
        "ring": [[rank, (rank + 1) % world] for rank in range(world)],
        "reverse": [[rank, world - 1 - rank] for rank in range(world)],
        "identity": [[rank, rank] for rank in range(world)],
        "one": [[0, world - 1]],
        "chain": [[rank, rank + 1] for rank in range(world - 1)],
    }[name]


@pytest.mark.topologies(2, 4, 8)
@pytest.mark.parametrize("name", ["ring", "reverse", "identity", "one", "chain"])
def test_permute(world: int, name: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    pairs, inputs = _pairs(name, world), ranks_of(world, (3, 2))
    job = trace(lambda x: xm.collective_permute(x, pairs), columns(inputs))
    got = job.program.only("collective_permute").pairs
    assert sorted(got) == sorted(map(tuple, pairs)), f"pairs: expected {pairs}, got {got}"
    check_numbers(job.run(), oracle.collective_permute(inputs, pairs))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_permute_dtype(world: int, dtype: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    pairs, inputs = _pairs("chain", world), ranks_of(world, (3, 2), dtype)
    job = trace(lambda x: xm.collective_permute(x, pairs), columns(inputs))
    check_numbers(job.run(), oracle.collective_permute(inputs, pairs))


@pytest.mark.upstream("pytorch/xla#9727", "openxla/stablehlo#574")
class TestAllToAll:
    @pytest.mark.topologies(2, 4, 8)
    @pytest.mark.parametrize("name", EVEN_LAYOUTS)
    def test_groups(self, world: int, name: str, start_runtime: StartRuntime) -> None:
        start_runtime(spmd=False)
        self._check(world, name, pin_layout=False)

    @pytest.mark.topologies(2, 4)
    @pytest.mark.parametrize("name", ["default", "pairs"])
    def test_pinned(self, world: int, name: str, start_runtime: StartRuntime) -> None:
        """As `xm.all_to_all` does by default."""
        start_runtime(spmd=False)
        self._check(world, name)

    @staticmethod
    def _check(world: int, name: str, **options: bool) -> None:
        groups, inputs = layout(name, world), ranks_of(world, (world, 2))
        size = len(groups[0]) if groups else world
        job = trace(
            lambda x: xm.all_to_all(x, 0, 0, size, groups=lists(groups), **options),
            columns(inputs),
        )
        collective = job.program.only("all_to_all")
        assert collective.split_count == size
        check_groups(collective, groups, world)
        check_numbers(job.run(), oracle.all_to_all(inputs, 0, 0, groups))

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("split", [0, 1])
    @pytest.mark.parametrize("concat", [0, 1])
    def test_dimensions(
        self, world: int, split: int, concat: int, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        inputs = ranks_of(world, (2, 4))
        job = trace(
            lambda x: xm.all_to_all(x, split, concat, world, pin_layout=False), columns(inputs)
        )
        check_numbers(job.run(), oracle.all_to_all(inputs, split, concat))

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtype(self, world: int, dtype: str, start_runtime: StartRuntime) -> None:
        start_runtime(spmd=False)
        inputs = ranks_of(world, (2, 3), dtype)
        job = trace(lambda x: xm.all_to_all(x, 0, 0, world, pin_layout=False), columns(inputs))
        check_numbers(job.run(), oracle.all_to_all(inputs, 0, 0))

    @pytest.mark.topologies(2, 8)
    @pytest.mark.parametrize("how", ["tensor", "no_sizes", "equal_sizes", "unit_sizes"])
    def test_export(self, world: int, group: str, how: str, start_runtime: StartRuntime) -> None:
        """Equal parts, whether the sizes are left out or spelled out."""
        start_runtime(spmd=False)
        rows = world if how == "unit_sizes" else 2 * world
        sizes = [] if how == "no_sizes" else [rows // world] * world

        def model(x: torch.Tensor) -> torch.Tensor:
            if how == "tensor":
                dist.all_to_all_single(moved := torch.empty_like(x), x)
                return moved
            return functional.wait_tensor(functional.all_to_all_single(x, sizes, sizes, group))

        inputs = ranks_of(world, (rows, 2))
        job = export(model, columns(inputs))
        check_groups(job.program.only("all_to_all"), (), world)
        check_numbers(job.run(), oracle.all_to_all(inputs, 0, 0))

    @pytest.mark.topologies(1)
    @pytest.mark.parametrize("pin", ["pinned", "unpinned"])
    def test_executes_at_world_size_one(self, start_runtime: StartRuntime, pin: str) -> None:
        start_runtime(spmd=False)
        value = np.arange(8, dtype=np.int32)
        moved = xm.all_to_all(
            to_torch(value).to(torch_xla.device()), 0, 0, 1, pin_layout=pin == "pinned"
        )
        check_numbers([[to_numpy(moved)]], [value])

    @pytest.mark.topologies(1)
    def test_too_many_parts_are_refused(self, start_runtime: StartRuntime) -> None:
        """One rank can't exchange two parts: an error, neither a result nor a crash."""
        start_runtime(spmd=False)
        moved = xm.all_to_all(torch.arange(8).to(torch_xla.device()), 0, 0, 2)
        with pytest.raises((RuntimeError, ValueError)):
            moved.cpu()

    @pytest.mark.topologies(4)
    @pytest.mark.upstream("pytorch/xla#8345")
    def test_under_spmd(self, start_runtime: StartRuntime) -> None:
        """Under SPMD a program has one replica: the same error is due."""
        start_runtime(spmd=True)
        moved = xm.all_to_all(torch.arange(8).to(torch_xla.device()), 0, 0, 4)
        with pytest.raises((RuntimeError, ValueError)):
            moved.cpu()


class TestBroadcast:
    @pytest.mark.topologies(2, 4, 8)
    @pytest.mark.parametrize("root", ["first", "last"])
    def test_in_place(self, world: int, root: str, start_runtime: StartRuntime) -> None:
        start_runtime(spmd=False)
        source = 0 if root == "first" else world - 1
        inputs = ranks_of(world, (3, 2))
        job = trace(lambda x: _broadcast_in_place(x, source), columns(inputs))
        check_numbers(job.run(), oracle.broadcast(inputs, source))

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dtype(self, world: int, dtype: str, start_runtime: StartRuntime) -> None:
        start_runtime(spmd=False)
        inputs = ranks_of(world, (3, 2), dtype)
        job = trace(lambda x: _broadcast_in_place(x, 1), columns(inputs))
        check_numbers(job.run(), oracle.broadcast(inputs, 1))

    @pytest.mark.topologies(4)
    @pytest.mark.parametrize("other", [np.inf, np.nan, 1e30])
    def test_what_the_others_hold_is_overwritten(
        self, world: int, other: float, start_runtime: StartRuntime
    ) -> None:
        """Only the root's values count: the others' memory may hold anything."""
        start_runtime(spmd=False)
        inputs = [np.full((3,), other, np.float32) for _ in range(world)]
        inputs[2] = np.array([1, 2, 3], np.float32)
        job = trace(lambda x: _broadcast_in_place(x, 2), columns(inputs))
        check_numbers(job.run(), oracle.broadcast(inputs, 2))

    @pytest.mark.topologies(2, 4)
    @pytest.mark.parametrize("rank", ["first", "last"])
    def test_export(self, world: int, group: str, rank: str, start_runtime: StartRuntime) -> None:
        """Exported on the root: every rank gets the root's values."""
        start_runtime(spmd=False)
        source = 0 if rank == "first" else world - 1
        inputs = ranks_of(world, (3, 2))
        job = export(
            lambda x: functional.wait_tensor(functional.broadcast(x, source, group)),
            columns(inputs),
        )
        assert job.program.collectives, "collectives: expected at least one, got none"
        check_numbers(job.run(), oracle.broadcast(inputs, source))

    @pytest.mark.topologies(2, 4)
    def test_functional(self, world: int, start_runtime: StartRuntime) -> None:
        start_runtime(spmd=False)
        inputs = ranks_of(world, (3, 2))
        job = trace(lambda x: functional.broadcast(x, 1, ""), columns(inputs))
        check_numbers(job.run(), oracle.broadcast(inputs, 1))


def _broadcast_in_place(x: torch.Tensor, root: int) -> torch.Tensor:
    xm.collective_broadcast([x], root)
    return x
