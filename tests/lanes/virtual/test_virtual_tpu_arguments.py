"""A program is not given an argument of other dimensions than its parameter, as on a TPU."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.environment(XLA_DYNAMO_INPUT_SHARDING_CHECK_THRESHOLD="2"),
]


def test_a_sharding_that_changes_after_dynamo_has_stopped_checking() -> None:
    """https://github.com/pytorch/xla/issues/5477: shards of 2x128 are not read as 8x32."""
    import numpy as np
    import torch
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    xr.use_spmd()
    mesh = xs.Mesh(np.arange(4), (1, 4), ("a", "b"))
    held = torch.arange(8 * 128, dtype=torch.float32).reshape(8, 128).to("xla")
    weight = torch.ones(4, 128).to("xla")
    torch_xla.sync()
    step = torch.compile(lambda a, b: a @ b.t(), backend="openxla")
    with torch.no_grad():
        xs.mark_sharding(held, mesh, (1, 0))
        for _ in range(4):
            step(held, weight)
        xs.clear_sharding(held)
        xs.mark_sharding(held, mesh, (0, 1))
        with pytest.raises(RuntimeError, match=r"expected f32\[2,128\] but got .* f32\[8,32\]"):
            step(held, weight).cpu()
