"""Equal shapes are compiled once."""

from collections.abc import Callable
from functools import partial

import pytest

from harness.lanes.events import EventLog, Events
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.kernels import KERNELS, Beside, assert_step, step
from suites.multislice_flash_attention.problems import Problem, assert_all_close
from suites.multislice_flash_attention.test_discovery import over_slices

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.upstream("pytorch/xla#8812"),
]


def in_the_second(tpu_events: EventLog, *calls: Callable[[], None]) -> Events:
    """Events of the last call. All come from one line: a kernel's payload holds its callers'."""
    for call in calls:
        before = tpu_events.read()
        call()
    return tpu_events.read().after(before)


@pytest.mark.topologies("2x1")
@pytest.mark.parametrize("kernel", ["flash", "flash-bias", "own-kernel"])
def test_second_call_compiles_nothing(
    tpu_events: EventLog, start_runtime: StartRuntime, kernel: str
) -> None:
    start_runtime(spmd=False)
    again = in_the_second(tpu_events, KERNELS[kernel], KERNELS[kernel])
    assert again.of("execute"), "the second call ran"
    assert not again.of("compile")
    assert not again.of("client")


@pytest.mark.long
@pytest.mark.topologies("2x1")
@pytest.mark.parametrize("mask", ["causal", "segments"])
def test_second_step_compiles_nothing(
    tpu_events: EventLog, start_runtime: StartRuntime, mask: str
) -> None:
    start_runtime(spmd=False)
    step = partial(assert_step, Problem(**{mask: True}))
    again = in_the_second(tpu_events, step, step)
    assert again.of("execute"), "the second step ran"
    assert not again.of("compile")
    assert not again.of("client")


@pytest.mark.long
@pytest.mark.topologies("2x2")
def test_second_sharded_step_compiles_nothing(
    tpu_events: EventLog, topology: Topology, start_runtime: StartRuntime
) -> None:
    start_runtime(spmd=True)
    problem, sharding = Problem(batch=2), over_slices(topology)
    steps: list[Beside] = []  # whose tensors are read later: that compiles something each time

    def again() -> None:
        steps.append(step(problem, **sharding))

    events = in_the_second(tpu_events, again, again)
    assert events.of("execute"), "the second step ran"
    assert not events.of("compile")
    assert not events.of("client")
    assert_all_close(steps[-1], problem.dtype)


@pytest.mark.topologies("2x1")
def test_payload_of_equal_shapes_is_cached(start_runtime: StartRuntime) -> None:
    """The kernel is traced by JAX once: torch_xla keeps its payload."""
    start_runtime(spmd=False)
    from torch_xla.debug import metrics

    KERNELS["flash"]()
    assert metrics.counter_value("trace_pallas_cache_hit") is None
    KERNELS["flash"]()
    assert metrics.counter_value("trace_pallas_cache_hit") == 1


@pytest.mark.long
@pytest.mark.topologies("2x1")
def test_control_other_shapes_compile(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    """The counter counts: another head count is another program, by torch_xla and not by JAX."""
    start_runtime(spmd=False)
    again = in_the_second(
        tpu_events, lambda: assert_step(Problem(heads=1)), lambda: assert_step(Problem(heads=3))
    )
    assert again.of("compile", by="torch_xla")
    assert not again.of("compile", by="jax")
