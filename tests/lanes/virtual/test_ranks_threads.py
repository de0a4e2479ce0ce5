"""Replicas in threads of one process: one executable meets in XLA's runtime, several elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.lanes.events import EventLog

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="4"),
    pytest.mark.deadline(60),
]


def replicas(fn: Callable[[int], Any]) -> list[Any]:
    """What upstream's thread per device returns, by ordinal."""
    import torch_xla.runtime as xr
    from torch_xla._internal import pjrt

    by_ordinal = pjrt._run_thread_per_device(
        0, 1, lambda: fn(xr.global_ordinal()), pjrt.initialize_multiprocess
    )
    return [value for _, value in sorted(by_ordinal.items())]


def has_executor() -> bool:
    """Whether the job has another process, as it does only where threads need it to meet."""
    return f"@xla-harness-{os.environ['XLA_HARNESS_JOB']}" in Path("/proc/net/unix").read_text()


def tensor(ordinal: int) -> Any:
    import torch
    import torch_xla

    # From the host: made on the device, it would be a constant of the program.
    return torch.full((2,), float(ordinal)).to(torch_xla.device())


@pytest.mark.parametrize("pin", [False, True])
def test_gathers_whose_layouts_are_pinned_or_not(*, pin: bool) -> None:
    """Pinned, each replica has a program of its own, which the job's executor runs."""

    def gather(ordinal: int) -> list[float]:
        import torch_xla.core.xla_model as xm

        gathered: list[float] = xm.all_gather(tensor(ordinal), pin_layout=pin).cpu().tolist()
        return gathered

    assert replicas(gather) == [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]] * 4
    assert has_executor() == pin


def test_replicas_of_one_program_meet_many_times(tpu_events: EventLog) -> None:
    def steps(ordinal: int) -> list[float]:
        import torch_xla
        import torch_xla.core.xla_model as xm

        value = tensor(ordinal)
        for _ in range(20):
            value = xm.all_reduce("sum", value) / 4
            torch_xla.sync()
        numbers: list[float] = value.cpu().tolist()
        return numbers

    assert replicas(steps) == [[1.5, 1.5]] * 4
    assert not has_executor()
    assert tpu_events.read().of("execute")


def test_replicas_that_do_not_match_are_an_outcome(tpu_events: EventLog) -> None:
    def reduce(ordinal: int) -> list[float]:
        import torch_xla.core.xla_model as xm

        kind = "max" if ordinal == 2 else "sum"
        reduced: list[float] = xm.all_reduce(kind, tensor(ordinal)).cpu().tolist()
        return reduced

    with pytest.raises(RuntimeError) as raised:
        replicas(reduce)
    culprit = "device 2 of rank 0 runs a program whose collectives do not match those of devices 0"
    assert culprit in str(raised.value)
    report = tpu_events.read().of("failed")[0].stack or ""
    assert "devices 0, 1, 3 of rank 0: all-reduce sum of f32[2], f32[] over {0, 1, 2, 3}" in report
    assert "device 2 of rank 0: all-reduce max of f32[2], f32[] over {0, 1, 2, 3}" in report


def test_a_replica_that_stays_away_is_an_outcome() -> None:
    def reduce(ordinal: int) -> list[float]:
        import torch_xla.core.xla_model as xm

        if ordinal == 3:
            return []
        reduced: list[float] = xm.all_reduce("sum", tensor(ordinal)).cpu().tolist()
        return reduced

    with pytest.raises(RuntimeError) as raised:
        replicas(reduce)
    assert "device 3 of rank 0 does nothing, for 4 s" in str(raised.value)
