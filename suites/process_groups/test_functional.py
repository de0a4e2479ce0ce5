"""PyTorch's functional collectives, which DTensor is built on: eagerly, and in a compiled step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from harness.model.topology import Target
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.process_groups.programs import COLLECTIVES
from suites.shared.groups import Groups, layout
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-*"),
    pytest.mark.frameworks("torch_xla", "torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]

FUNCTIONAL: dict[str, Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor]] = {
    "all_reduce": lambda x, group: functional.all_reduce(x, "sum", group),
    "all_gather_into_tensor": lambda x, group: functional.all_gather_tensor(x, 0, group),
    "reduce_scatter_tensor": lambda x, group: functional.reduce_scatter_tensor(x, "sum", 0, group),
    "all_to_all_single": lambda x, group: functional.all_to_all_single(x, None, None, group),
}


def _group(rank: Rank) -> dist.ProcessGroup:
    group = rank.group or dist.group.WORLD
    assert group is not None
    return group


def _eager(name: str) -> Program:
    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        return functional.wait_tensor(FUNCTIONAL[name](x, _group(rank)))

    return program


def _compiled(name: str) -> Program:
    """With an operation before and after, which cancel each other."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        group = _group(rank)

        def step(x: torch.Tensor) -> torch.Tensor:
            return FUNCTIONAL[name](x * 2, group) / 2

        compiled: torch.Tensor = torch.compile(step, backend="tpu", fullgraph=True)(x)
        return compiled

    return program


def _question(name: str, program: Program, world: int, groups: Groups = ()) -> Question:
    inputs = ranks_of(world, (8, 3))
    known = COLLECTIVES[name]
    return Question(program, inputs, known.meaning(inputs, groups), known.over_gloo)


@pytest.mark.parametrize("groups", ["world", "pairs"])
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_eager(xla_target: Target, subtests: pytest.Subtests, name: str, groups: str) -> None:
    world = xla_target.topology.total
    of = () if groups == "world" else layout(groups, world)
    ask(subtests, xla_target, {"float32": _question(name, _eager(name), world, of)}, of)


@pytest.mark.frameworks("torch_tpu")
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_compiled(xla_target: Target, subtests: pytest.Subtests, name: str) -> None:
    world = xla_target.topology.total
    ask(subtests, xla_target, {"float32": _question(name, _compiled(name), world)})
