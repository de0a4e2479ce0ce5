"""Compiled steps of TorchTPU in which a collective stands beside what a compiler rearranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.asking import ask
from suites.process_groups.jobs import Program, Question, Rank
from suites.process_groups.programs import group_of
from suites.shared.groups import layout
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#9315"),
]

Meaning = Callable[[np.ndarray, np.ndarray], list[np.ndarray]]  # of a rank's input and the sum


def _compiled(step: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(
        step, backend="tpu", fullgraph=True, options=options
    )
    return compiled


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _in_place(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Change the step's input in the step, and by the collective."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        dist.all_reduce(x, group=group_of(rank))
        return x + 1

    return _joined([_compiled(step)(x), x])


def _same_buffer(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Return one tensor and views of it, which differ in shape and stride."""

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = functional.all_reduce(x * 2, "sum", group_of(rank))
        return total, total[:4], total.t()

    return _joined(_compiled(step)(x))


def _offsets(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Take views of one buffer as inputs, and other views of it in the next call."""

    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = functional.all_reduce(a * 2 + b[:4], "sum", group_of(rank))
        return total

    compiled = _compiled(step)
    return _joined([compiled(x[:4], x), compiled(x[4:], x), compiled(x[4:], x[1:])])


def _constants(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Use a constant on each side of the collective."""

    def step(x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 4.0], device=x.device)
        shift = torch.tensor([3.0, 5.0, 7.0], device=x.device)
        total: torch.Tensor = functional.all_reduce(x * scale - shift, "sum", group_of(rank))
        return total * scale + shift

    return _joined([_compiled(step)(x)])


def _unused(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Call a collective whose result is not used."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        functional.all_reduce(y - 1, "sum", group_of(rank))
        return y

    return _joined([_compiled(step)(x)])


def _unused_in_a_region(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Call an unused collective that is compiled together with what is around it."""

    @torch.tpu.distributed.spmd_safe
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        functional.all_reduce(y - 1, "sum", group_of(rank))
        return y

    return _joined([_compiled(step)(x)])


def _coalesced(x: torch.Tensor, rank: Rank) -> torch.Tensor:
    """Call one collective of two tensors."""

    def step(x: torch.Tensor) -> torch.Tensor:
        both = functional.reduce_scatter_tensor_coalesced(
            [x * 2, -x], "sum", [0, 0], group_of(rank)
        )
        every = functional.all_gather_into_tensor_coalesced([both[0] * 2, both[1]], group_of(rank))
        return every[0] + every[1]

    return _joined([_compiled(step)(x)])


SCALE, SHIFT = np.array([1, 2, 4], np.float32), np.array([3, 5, 7], np.float32)
STEPS: dict[str, tuple[Program, Meaning]] = {
    "in-place": (_in_place, lambda _, total: [2 * total + 1, 2 * total]),
    "same-buffer": (_same_buffer, lambda _, total: [2 * total, 2 * total[:4], 2 * total.T]),
    "offsets": (
        _offsets,
        lambda _, total: [
            2 * a + b
            for a, b in ((total[:4], total[:4]), (total[4:], total[:4]), (total[4:], total[1:5]))
        ],
    ),
    "constants": (_constants, lambda _, total: [(total * SCALE - 4 * SHIFT) * SCALE + SHIFT]),
    "unused": (_unused, lambda own, _: [2 * own]),
    "unused-in-a-region": (_unused_in_a_region, lambda own, _: [2 * own]),
    "coalesced": (_coalesced, lambda _, total: [4 * total - total]),
}


@pytest.mark.parametrize("step", STEPS)
def test_step(xla_target: Target, subtests: pytest.Subtests, step: str) -> None:
    inputs = ranks_of(xla_target.topology.total, (8, 3))
    program, meaning = STEPS[step]
    total = oracle.all_reduce(inputs, "sum")[0]
    expected = [
        np.concatenate([part.reshape(-1) for part in meaning(own, total)]) for own in inputs
    ]
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)})


@pytest.mark.parametrize("groups", ["pairs", "strided"])
def test_subgroups(xla_target: Target, subtests: pytest.Subtests, groups: str) -> None:
    """Collectives of two groups in one step: one's own, and all ranks."""

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        def step(x: torch.Tensor) -> torch.Tensor:
            own = functional.all_reduce(x * 2, "sum", group_of(rank))
            return own - functional.all_reduce(x, "sum", dist.group.WORLD)

        return _joined([_compiled(step)(x)])

    of = layout(groups, xla_target.topology.total)
    inputs = ranks_of(xla_target.topology.total, (8, 3))
    own, total = oracle.all_reduce(inputs, "sum", of), oracle.all_reduce(inputs, "sum")[0]
    expected = [(2 * value - total).reshape(-1) for value in own]
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)}, of)


@pytest.mark.parametrize(("safe", "parts"), [(True, 1), (False, 3)], ids=["safe", "default"])
def test_parts(xla_target: Target, subtests: pytest.Subtests, safe: bool, parts: int) -> None:
    """A collective is a program of its own, so that ranks that differ around it don't deadlock.

    In a region of `spmd_safe` it is compiled together with what is around it.
    """

    def program(x: torch.Tensor, rank: Rank) -> torch.Tensor:
        def step(x: torch.Tensor) -> torch.Tensor:
            total: torch.Tensor = functional.all_reduce(x * 2, "sum", group_of(rank))
            return total + 1

        reports: list[Any] = []
        marked = torch.tpu.distributed.spmd_safe(step) if safe else step
        y = _compiled(marked, debug_callback=reports.append, serializable=False)(x)
        (compiled,) = reports[0].compiled_executables
        counts = [float(len(compiled.compiled_executables))]
        return torch.cat([y.flatten(), torch.tensor(counts, device=y.device)])

    inputs = ranks_of(xla_target.topology.total, (8, 3))
    total = oracle.all_reduce(inputs, "sum")[0]
    expected = [np.append(2 * total + 1, np.float32(parts))] * len(inputs)
    ask(subtests, xla_target, {"float32": Question(program, inputs, expected, None)})
