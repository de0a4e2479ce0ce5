"""jax.experimental.multihost_utils and jax.distributed in a job."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from harness.job.ranks import run_ranks
from harness.messages.ports import HOST, free_port
from harness.model.topology import Topology
from suites.shared.global_arrays import Spec, mesh_of, run_jax_ranks, spread
from suites.shared.jax_releases import since_0_5

pytestmark = [pytest.mark.lanes("virtual-*"), pytest.mark.upstream("jax-ml/jax#25783")]

# From JAX 0.8 on they are those within a block, whose end is agreed upon.
LISTS_LIVE_DEVICES = (0, 7) <= jax.__version_info__ < (0, 8)


def _own(number: int) -> dict[str, np.ndarray]:
    """Return a process's arrays: different in each process, of several dtypes and shapes."""
    random = np.random.default_rng(number)
    return {
        "floats": random.standard_normal((2, 3)).astype(np.float32),
        "integers": random.integers(-100, 100, 4, np.int32),
        "scalar": np.asarray(-1 - number, np.int32),
        "flags": random.integers(0, 2, (3,)).astype(np.bool_),
    }


def _assert_equal(got: Any, expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(np.asarray(got[name]), value, err_msg=name)


@pytest.mark.long
@pytest.mark.topologies("4@chip", "8@host", "2x4@slice")
def test_gather_and_broadcast(topology: Topology, subtests: pytest.Subtests) -> None:
    value = np.arange(4.0 * topology.total, dtype=np.float32).reshape(-1, 4)

    def rank(number: int) -> list[Any]:
        own = _own(number)
        array = spread(value, mesh_of(topology.total), Spec("x"))
        return [
            multihost_utils.process_allgather(own),
            multihost_utils.process_allgather(own["floats"], tiled=True),
            multihost_utils.process_allgather(array, tiled=True),
            multihost_utils.broadcast_one_to_all(own),
            multihost_utils.broadcast_one_to_all(own, is_source=number == 1),
        ]

    count = topology.process_count
    stacked = {name: np.stack([_own(n)[name] for n in range(count)]) for name in _own(0)}
    for number, (gathered, tiled, whole, first, second) in enumerate(run_jax_ranks(rank, topology)):
        with subtests.test(rank=number):
            _assert_equal(gathered, stacked)
            np.testing.assert_array_equal(tiled, np.concatenate(stacked["floats"]))
            np.testing.assert_array_equal(whole, value)
            _assert_equal(first, _own(0))
            _assert_equal(second, _own(1))


@pytest.mark.long
@pytest.mark.topologies("4@chip", "2x4@slice")
def test_assertions(topology: Topology) -> None:
    """Equal values pass on all ranks; one that differs fails, and the job goes on.

    JAX says so on that rank, and since 0.10 on all others too.
    """

    def rank(number: int) -> str:
        multihost_utils.sync_global_devices("start")
        multihost_utils.assert_equal(_own(3), "the same everywhere")
        raised = ""
        try:
            multihost_utils.assert_equal(np.asarray([1, number == 1]), "of rank 1 only")
        except AssertionError as error:
            raised = str(error)
        multihost_utils.sync_global_devices("end")
        return raised

    raised = run_jax_ranks(rank, topology)
    assert "of rank 1 only" in raised[1]
    assert sum("of rank 1 only" in text for text in raised) in (1, len(raised))


@pytest.mark.topologies("8@host", "2x4@slice")
def test_host_local_arrays(topology: Topology) -> None:
    """Each process's rows as one global array, and back."""

    def rank(number: int) -> tuple[tuple[int, ...], np.ndarray, np.ndarray]:
        mesh, own = mesh_of(topology.total), np.full((4, 2), number, np.float32)
        whole = multihost_utils.host_local_array_to_global_array(own, mesh, Spec("x"))
        total = jax.jit(lambda x: x.sum(0))(whole)
        back = multihost_utils.global_array_to_host_local_array(whole, mesh, Spec("x"))
        to_global = multihost_utils.host_local_array_to_global_array
        assert to_global(whole, mesh, Spec("x")) is whole
        assert multihost_utils.global_array_to_host_local_array(back, mesh, Spec("x")) is back
        everywhere = spread(np.arange(8.0 * len(own)).reshape(-1, 2), mesh, Spec())
        own_rows = multihost_utils.global_array_to_host_local_array(everywhere, mesh, Spec("x"))
        count = everywhere.shape[0] // topology.process_count
        np.testing.assert_array_equal(own_rows, np.asarray(everywhere)[number * count :][:count])
        mapped = jax.vmap(lambda v: to_global(v, mesh, Spec("x")), 1, 1)(own)
        assert mapped.sharding.is_equivalent_to(whole.sharding, 2)
        np.testing.assert_array_equal(jax.jit(lambda x: x.sum(0))(mapped), total)
        tree = to_global({"a": own, "b": [own[0]]}, mesh, {"a": Spec("x"), "b": Spec()})
        assert (tree["a"].shape, tree["b"][0].shape) == (whole.shape, (2,))
        for convert in (to_global, multihost_utils.global_array_to_host_local_array):
            with pytest.raises(ValueError, match="None"):
                convert(own, mesh, None)
        return whole.shape, np.asarray(total), np.asarray(back)

    count = topology.process_count
    for number, (shape, total, back) in enumerate(run_jax_ranks(rank, topology)):
        assert shape == (4 * count, 2)
        np.testing.assert_array_equal(total, [4 * sum(range(count))] * 2)
        np.testing.assert_array_equal(back, np.full((4, 2), number))


def check_live_devices(number: int) -> None:
    """All devices of a job live; each process asks of some that it has itself."""
    assert multihost_utils.live_devices(jax.devices()) == jax.devices()
    assert multihost_utils.live_devices(jax.local_devices()) == jax.local_devices()
    others = [device for device in jax.devices() if device.process_index != number]
    for wrong in ([], others):
        with pytest.raises(ValueError, match="device"):
            multihost_utils.live_devices(wrong)


@since_0_5
@pytest.mark.topologies("4")
def test_in_one_process() -> None:
    """Without a job everything comes back, as arrays of NumPy, and no process is waited for."""
    own = _own(1)
    _assert_equal(multihost_utils.broadcast_one_to_all(own), own)
    array = spread(own["floats"], mesh_of(4), Spec())
    for value in (own["floats"], array):
        gathered = multihost_utils.process_allgather(value)
        np.testing.assert_array_equal(gathered, own["floats"][None])
        tiled = multihost_utils.process_allgather(value, tiled=True)
        np.testing.assert_array_equal(tiled, own["floats"])
    multihost_utils.sync_global_devices("alone")
    assert multihost_utils.reached_preemption_sync_point(1) is False
    if LISTS_LIVE_DEVICES:
        with pytest.raises(RuntimeError, match="not initialized"):
            multihost_utils.live_devices(jax.devices())


@pytest.mark.long
@pytest.mark.skipif(
    jax.__version_info__ < (0, 5), reason="JAX before 0.5 asks Google Cloud which worker it is"
)
@pytest.mark.topologies("4@chip", "2x4@slice")
def test_distributed_initialize(topology: Topology) -> None:
    """JAX's own coordination service on this machine, beside the job's devices."""
    address, count = f"{HOST}:{free_port()}", topology.process_count

    def rank(number: int) -> tuple[int, int, int, int, list[int]]:
        jax.distributed.initialize(address, count, number)
        multihost_utils.sync_global_devices("ready")
        gathered = multihost_utils.process_allgather(np.asarray(number))
        counts = (jax.process_index(), jax.process_count(), jax.device_count())
        assert multihost_utils.reached_preemption_sync_point(3) is False
        if LISTS_LIVE_DEVICES:
            check_live_devices(number)
        local = jax.local_device_count()
        jax.distributed.shutdown()
        return *counts, local, gathered.tolist()

    for number, facts in enumerate(run_ranks(rank, topology)):
        each = topology.total // count
        assert facts == (number, count, topology.total, each, list(range(count)))
