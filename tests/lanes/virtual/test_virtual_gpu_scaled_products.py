"""Products of scaled 8-bit numbers, which cuDNN computes on a GPU, with NumPy as oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.lanes.events import EventLog

pytestmark = [pytest.mark.lanes("virtual-gpu"), pytest.mark.topologies("b200:2")]


@pytest.mark.parametrize("divided", [None, 1, 2], ids=["whole", "rows", "depth"])
def test_scaled_product_is_computed_and_counted(tpu_events: EventLog, divided: int | None) -> None:
    import jax
    import ml_dtypes
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    random = np.random.default_rng(0)

    def scaled(rows: int) -> tuple[Any, Any, np.ndarray]:
        numbers = random.integers(-8, 9, (2, rows, 128)).astype(ml_dtypes.float8_e4m3fn)
        scales = 2.0 ** random.integers(-2, 3, (2, rows, 4))
        whole = numbers.astype(float) * np.repeat(scales, 32, axis=2)
        return numbers, scales.astype(ml_dtypes.float8_e8m0fnu), whole

    (a, a_scales, a_whole), (b, b_scales, b_whole) = scaled(64), scaled(32)
    spec = PartitionSpec(*(None if axis != divided else "x" for axis in range(3)))
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), spec)
    placed = jax.device_put((a, b, a_scales, b_scales), sharding)
    compiled = jax.jit(jax.nn.scaled_matmul).lower(*placed).compile()
    np.testing.assert_array_equal(compiled(*placed), a_whole @ b_whole.transpose(0, 2, 1))
    assert "custom-call.__cudnn$blockScaledDot" in compiled.as_text()
    rewrites = {event.rewrite for event in tpu_events.read().of("rewrite")}
    assert "scaled product of cuDNN" in rewrites
