"""SKIP_MEGASCALE_PJRT_CLIENT is the user's: torch_xla sets it for JAX's client and puts it back."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch_xla.debug import profiler

from harness.lanes.events import EventLog
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.kernels import KERNELS, backward, forward
from suites.multislice_flash_attention.problems import Problem, flash, leaves_on_tpu

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8954", "pytorch/xla#8850"),
]
GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"
USERS = pytest.mark.parametrize(
    "value", [None, "true", "false", ""], ids=["unset", "true", "false", "empty"]
)


def convert_mesh() -> None:
    """Make JAX's mesh of torch_xla's."""
    xs.Mesh(np.arange(2), (2,), ("x",)).get_jax_mesh()


def enter_trace() -> None:
    """Name a part of the program for the profiler."""
    from torch_xla.debug.profiler import Trace

    with Trace("attention"):
        pass


CALLS = {
    "flash": forward,
    "flash-backward": backward,
    "own-kernel": KERNELS["own-kernel"],
    "jax-mesh": convert_mesh,
    "trace": enter_trace,
}


@pytest.fixture
def users_value(
    start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> str | None:
    """Set the guard as the user has it, after the runtime has started."""
    start_runtime(spmd=False)
    if value is None:
        monkeypatch.delenv(GUARD, raising=False)
    else:
        monkeypatch.setenv(GUARD, value)
    return value


def assert_left_as(value: str | None) -> None:
    current = os.environ.get(GUARD)
    assert current == value, f"{GUARD}={current!r}, the user had {value!r}"


@USERS
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_left_as_found(users_value: str | None, call: Callable[[], None]) -> None:
    call()
    assert_left_as(users_value)


@USERS
def test_left_as_found_after_a_failure(users_value: str | None) -> None:
    problem = Problem()
    leaves = leaves_on_tpu(problem)
    with pytest.raises(Exception, match=r"(?i)shape|incompatible|dimension|size"):
        flash(problem, leaves | {"k": leaves["k"][..., :64]})
    assert_left_as(users_value)


@USERS
@pytest.mark.usefixtures("users_value")
def test_client_of_jax_is_guarded(tpu_events: EventLog) -> None:
    """Whatever the user's value, JAX's client is created under "true"."""
    forward()
    (client,) = tpu_events.read().of("client", by="jax")
    assert client.guard == "true"


@pytest.mark.environment(SKIP_MEGASCALE_PJRT_CLIENT="true")
def test_set_from_the_start(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    """Then torch_xla's own client is guarded too, and nobody discovers the slices."""
    start_runtime(spmd=False)
    forward()
    tpu_events.expect_discoveries(0)
    assert os.environ[GUARD] == "true"


@pytest.mark.environment(SKIP_MEGASCALE_PJRT_CLIENT="false")
def test_false_is_no_guard(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=False)
    forward()
    tpu_events.expect_discoveries(1)
    assert os.environ[GUARD] == "false"


def guard_import() -> None:
    """Prepare for the import of JAX, as torch_xla's guide to Pallas does."""
    from torch_xla.experimental.custom_kernel import jax_import_guard

    jax_import_guard()


@pytest.mark.topologies("2")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(guard_import, id="import"),
        pytest.param(
            enter_trace,
            id="trace",
            marks=pytest.mark.skipif(
                not hasattr(profiler, "maybe_get_jax"),
                reason="in this release Trace does not reach JAX",
            ),
        ),
    ],
)
def test_torch_xla_has_the_first_client(tpu_events: EventLog, call: Callable[[], None]) -> None:
    """Whoever reaches JAX before any tensor is on a device: JAX would lock the chips."""
    call()
    import jax

    assert len(jax.devices()) == 2
    assert (torch.ones(2).to("xla") + 1).tolist() == [2, 2]
    assert [client.by for client in tpu_events.read().of("client")] == ["torch_xla", "jax"]
