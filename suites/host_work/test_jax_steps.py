"""Calls of each traced, lowered and dispatched step of JAX."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from harness.model.host_work import HostWork
from harness.model.topology import Target, Topology
from suites.host_work import steps
from suites.host_work.numbers import check_descent
from suites.shared.jax_compiled import exchanges

pytestmark = [
    pytest.mark.topologies("4"),
    pytest.mark.upstream("vllm-project/tpu-inference#2949"),
]
Step = Callable[[Mesh], tuple[Callable[..., Any], tuple[Any, ...]]]

_DISPATCHES = 10
# Of a compiled program whose call native code answers: the function that calls it and little else.
_FEW = 20


@pytest.fixture
def mesh(topology: Topology) -> Mesh:
    """All devices in a row. By default a TPU multiplies in bfloat16, which is not compared here."""
    jax.config.update("jax_default_matmul_precision", "highest")
    devices = jax.devices()
    assert len(devices) == topology.total
    return Mesh(np.array(devices), ("x",))


@pytest.mark.long
@pytest.mark.lanes("cpu", "virtual-tpu", "tpu")
@pytest.mark.parametrize("step", [steps.training, steps.scanned, steps.sharded, steps.by_hand])
def test_step(mesh: Mesh, host_work: HostWork, step: Step, xla_target: Target) -> None:
    """A step is traced, lowered and dispatched; the compiled one is not traced again."""
    arguments, (updated, loss) = _count(step, mesh, host_work)
    np.testing.assert_array_equal(arguments[-1], steps.tokens())  # whose order no loss shows
    if step is steps.by_hand:  # whose devices each have weights and a part of the batch
        devices = range(mesh.size)
        copies = [jax.tree.map(operator.itemgetter(n), updated) for n in devices]
        parts = np.split(steps.tokens(), mesh.size)
        check_descent([steps.parameters(n) for n in devices], parts, copies, loss)
    else:
        check_descent([steps.parameters()], [steps.tokens()], [updated], loss)
    if step is steps.sharded and xla_target.lane != "tpu":  # whose compiler divides all-reduces
        compiled = jax.jit(step(mesh)[0]).lower(*arguments).compile()
        assert exchanges(compiled) == {"all-reduce"}, "more than sums of gradients"


@pytest.mark.long
@pytest.mark.lanes("virtual-tpu", "tpu")
def test_kernel(mesh: Mesh, host_work: HostWork) -> None:
    """A Pallas kernel and its gradient, lowered for Mosaic."""
    _, gradients = _count(steps.attention, mesh, host_work)
    _, *expected = steps.ATTENTION.expected()
    for gradient, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, right, rtol=1e-3, atol=1e-5)


@pytest.mark.lanes("cpu", "virtual-tpu", "tpu")
def test_one_by_one(mesh: Mesh, host_work: HostWork) -> None:
    """Operations outside of jit, on one device and on all, and a transfer to all devices."""
    along = NamedSharding(mesh, PartitionSpec("x"))
    host = np.arange(64.0, dtype=np.float32).reshape(8, 8)

    def operate(x: jax.Array) -> jax.Array:
        return jnp.where(jnp.sin(x) > 0, x, 1.0).reshape(-1)[:8].astype(jnp.bfloat16)

    results = list[np.ndarray]()
    for name, x in {"one": jnp.asarray(host), "all": jax.device_put(host, along)}.items():
        for _ in range(2):
            operate(x)
        with host_work.counted(f"operate_on_{name}"):
            result = operate(x)
        results.append(np.asarray(result, np.float32))
    assert np.array_equal(results[0], results[1])
    jax.device_put(host, along)
    with host_work.counted("device_put"):
        put = jax.device_put(host, along)
    assert np.array_equal(put, host)


def _count(step: Step, mesh: Mesh, host_work: HostWork) -> Any:
    """Count the calls of a step's stages; return its arguments and its result."""
    _, arguments = step(mesh)

    def stages(work: HostWork) -> Any:
        function, _ = step(mesh)  # one of its own, or nothing would be traced
        jitted = jax.jit(function)
        with work.counted("trace"):
            traced = jitted.trace(*arguments)
        with work.counted("lower"):
            traced.lower()
        return jitted

    stages(HostWork(_nowhere))
    again = HostWork(_nowhere)
    stages(again)
    jitted = stages(host_work)
    for _ in range(2):
        jax.block_until_ready(jitted(*arguments))
    with host_work.counted("dispatch", _DISPATCHES):
        for _ in range(_DISPATCHES):
            result = jitted(*arguments)
    for name, calls in again.calls.items():
        assert host_work.calls[name] == pytest.approx(calls, rel=0.01), (
            f"{name} was counted twice: {calls} calls, then {host_work.calls[name]}"
        )
    assert host_work.calls["dispatch"] <= _FEW, (
        f"a compiled step makes {host_work.calls['dispatch']} calls: it is not dispatched by "
        "native code"
    )
    return arguments, result


def _nowhere(step: str, calls: int) -> None:
    """For a count that is only compared."""
