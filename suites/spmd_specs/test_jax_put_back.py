"""Where cotangents of moved arrays go: where these were, or where a caller says that they were."""

from __future__ import annotations

from inspect import signature
from typing import Any

import jax
import numpy as np
import pytest

from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("4"),
    pytest.mark.upstream("jax-ml/jax#16816"),
    since_0_5,
    pytest.mark.skipif(
        "may_alias" not in signature(jax.device_put).parameters,
        reason="device_put of this release of JAX neither donates nor copies",
    ),
]


def test_cotangents_go_back() -> None:
    first, second, third, last = jax.devices()
    value = np.arange(3, dtype=np.float32)
    given = {"a": jax.device_put(value, second), "b": jax.device_put(value + 1, third)}

    def back(src: Any = None, **options: Any) -> dict[str, Any]:
        def moved(tree: Any) -> Any:
            return jax.device_put(tree, {"a": third, "b": first}, src=src, **options)

        out, transposed = jax.vjp(moved, given)
        assert {key: leaf.device for key, leaf in out.items()} == {"a": third, "b": first}
        (cotangents,) = transposed(out)
        np.testing.assert_array_equal(cotangents["a"], value)
        np.testing.assert_array_equal(cotangents["b"], value + 1)
        return {key: leaf.device for key, leaf in cotangents.items()}

    assert back() == {"a": second, "b": third}
    assert back({"a": last, "b": None}, may_alias=False) == {"a": last, "b": third}
    assert back(last) == {"a": last, "b": last}
