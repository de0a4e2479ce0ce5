"""The numeric token that keeps collectives in order must not change what they compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch_xla.core import xla_model as xm

from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.programs import trace
from suites.shared.comparison import check_numbers
from suites.shared.values import columns, ranks_of

pytestmark = [
    pytest.mark.lanes("cpu", "virtual-*"),
    pytest.mark.topologies(4),
    pytest.mark.upstream("pytorch/xla#8969", "openxla/xla#8724"),
]

FIRST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_gather": lambda x: xm.all_gather(x, pin_layout=False),
    "reduce_scatter": lambda x: xm.reduce_scatter("sum", x, 1.0, 0, len(x)),
    "all_to_all": lambda x: xm.all_to_all(x, 0, 0, len(x), pin_layout=False),
    "permute": lambda x: xm.collective_permute(x, [[0, 0]]),
    "all_reduce": lambda x: xm.all_reduce("sum", x),
}


def _moved(world: int, first: str, value: float) -> list[np.ndarray]:
    """Return each rank's input: the value, or, if it is finite, NaN where no token is taken from.

    It is taken from the first element that a rank receives.
    """
    moved = np.full((world, world), value, np.float32)
    if np.isfinite(value) and first in ("all_gather", "all_to_all", "permute"):
        moved[1:] = np.nan
        moved[0, 1:] = value if first == "all_to_all" else np.nan
    return list(moved)


def _check_second(world: int, first: str, value: float) -> None:
    moved = _moved(world, first, value)
    inputs = ranks_of(world, (world,))

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        FIRST[first](x)
        return xm.reduce_scatter("sum", y, 1.0, 0, world)

    job = trace(model, columns(moved, inputs))
    check_numbers(job.run(), oracle.reduce_scatter(inputs, "sum", 0))


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("first", FIRST)
def test_a_collective_does_not_change_the_next(
    world: int, first: str, value: float, start_runtime: StartRuntime
) -> None:
    """What one collective moves has no part in the result of an unrelated one."""
    start_runtime(spmd=False)
    _check_second(world, first, value)


@pytest.mark.environment(DISABLE_NUMERIC_CC_TOKEN="1")  # noqa: S106 (no password)
@pytest.mark.parametrize("first", FIRST)
def test_without_numeric_token(world: int, first: str, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    _check_second(world, first, np.inf)
