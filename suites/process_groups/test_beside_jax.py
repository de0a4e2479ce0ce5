"""TorchTPU and JAX in the same processes, each with a client of its own on the same chips."""

from __future__ import annotations

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from suites.process_groups.jobs import check
from suites.shared.backends import BACKENDS
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2@chip"),
    pytest.mark.upstream("pytorch/xla#8812"),
]


@pytest.mark.parametrize("first", ["torch_tpu", "jax"])
def test_both(xla_target: Target, first: str) -> None:
    """Each computes on its rank's own chip, whichever comes first."""
    jax = pytest.importorskip("jax")
    import torch.distributed as dist

    inputs, backend = ranks_of(xla_target.topology.total, (4, 3)), BACKENDS[xla_target.framework]

    def in_torch(number: int) -> np.ndarray:
        x = to_torch(inputs[number]).to(backend.join())
        dist.all_reduce(x)
        return to_numpy(x)

    def in_jax(number: int) -> np.ndarray:
        (device,) = jax.local_devices()
        assert (device.platform, device.process_index) == ("tpu", number)
        return np.asarray(jax.numpy.cumsum(jax.device_put(inputs[number], device), axis=0))

    def rank(number: int) -> tuple[np.ndarray, np.ndarray]:
        if first == "jax":
            summed_up, reduced = in_jax(number), in_torch(number)
        else:
            reduced, summed_up = in_torch(number), in_jax(number)
        backend.settle()
        return reduced, summed_up

    reduced, summed_up = zip(*run_ranks(rank, xla_target.topology), strict=True)
    check(reduced, oracle.all_reduce(inputs, "sum"))
    check(summed_up, [np.cumsum(x, axis=0, dtype=x.dtype) for x in inputs])
