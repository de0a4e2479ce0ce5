"""`all_gather` and `reduce_scatter` through torch.export, functional and `torch.distributed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_groups, check_operands, check_signature
from suites.collectives.programs import export
from suites.shared.comparison import check_numbers
from suites.shared.groups import layout
from suites.shared.values import columns, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#3412")]

functional = torch.ops._c10d_functional
Spell = Callable[[torch.Tensor, str, int], torch.Tensor]


def _gather_functional(x: torch.Tensor, group: str, size: int) -> torch.Tensor:
    return functional.wait_tensor(functional.all_gather_into_tensor(x, size, group))


def _gather_tensor(x: torch.Tensor, _: str, size: int) -> torch.Tensor:
    gathered = x.new_empty((size * len(x), *x.shape[1:]))
    dist.all_gather_into_tensor(gathered, x)
    return gathered


def _gather_list(x: torch.Tensor, _: str, size: int) -> torch.Tensor:
    gathered = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(gathered, x)
    return torch.cat(gathered)


def _scatter_functional(x: torch.Tensor, group: str, size: int) -> torch.Tensor:
    return functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", size, group))


def _scatter_tensor(x: torch.Tensor, _: str, size: int) -> torch.Tensor:
    scattered = x.new_empty((len(x) // size, *x.shape[1:]))
    dist.reduce_scatter_tensor(scattered, x)
    return scattered


GATHERS = {"functional": _gather_functional, "tensor": _gather_tensor, "list": _gather_list}
SCATTERS = {"functional": _scatter_functional, "tensor": _scatter_tensor}
SPELLINGS: list[tuple[str, str, Spell]] = [
    *(("all_gather", name, spell) for name, spell in GATHERS.items()),
    *(("reduce_scatter", name, spell) for name, spell in SCATTERS.items()),
]
spelled = pytest.mark.parametrize(
    ("kind", "spell"),
    [pytest.param(kind, spell, id=f"{kind}-{name}") for kind, name, spell in SPELLINGS],
)


def _oracle(kind: str, inputs: list[np.ndarray], groups: Any = ()) -> list[np.ndarray]:
    if kind == "all_gather":
        return oracle.all_gather(inputs, 0, groups)
    return oracle.reduce_scatter(inputs, "sum", 0, groups)


@pytest.mark.topologies(2, 8)
@spelled
def test_numbers(
    world: int, group: str, kind: str, spell: Spell, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (world, 2))
    job = export(lambda x: spell(x, group, world), columns(inputs))
    collective = job.program.only(kind)
    check_operands(collective, 1)
    check_groups(collective, (), world)
    check_numbers(job.run(), _oracle(kind, inputs))


@pytest.mark.topologies(4)
@pytest.mark.upstream("pytorch/xla#8969")
@spelled
def test_signature(
    world: int, group: str, kind: str, spell: Spell, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=False)
    inputs = ranks_of(world, (world, 2))
    job = export(lambda x: spell(x, group, world), columns(inputs))
    check_signature(job.program, inputs[:1], _oracle(kind, inputs)[:1])


@pytest.mark.topologies(4)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("name", ["all", "pairs", "strided"])
@pytest.mark.usefixtures("group")
def test_subgroup(world: int, name: str, kind: str, start_runtime: StartRuntime) -> None:
    """Rank 0's replica groups must hold its own subgroup."""
    start_runtime(spmd=False)
    (ranks,) = (ranks for ranks in layout(name, world) if 0 in ranks)
    subgroup, inputs = dist.new_group(list(ranks)).group_name, ranks_of(world, (world, 2))
    spell = GATHERS["functional"] if kind == "all_gather" else SCATTERS["functional"]
    job = export(lambda x: spell(x, subgroup, len(ranks)), columns(inputs))
    got = job.program.only(kind).groups
    assert ranks in got, f"groups: expected {ranks} among them, got {got}"
