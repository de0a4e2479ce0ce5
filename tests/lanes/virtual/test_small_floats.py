"""Floating-point numbers of 8 bits on virtual devices, all 256 of a type, as ml_dtypes has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

TYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e4m3b11fnuz")


@pytest.mark.lanes("virtual-tpu")
@pytest.mark.parametrize("name", TYPES)
def test_every_number_survives_being_moved_and_multiplied(name: str) -> None:
    import jax
    import jax.numpy as jnp

    every = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    kept = every[~np.isnan(every.astype(np.float32))]
    moved = jax.jit(lambda x: jnp.concatenate([x[::-1], x[:3]]))(kept)
    expected = np.concatenate([kept[::-1], kept[:3]])
    np.testing.assert_array_equal(np.asarray(moved).view(np.uint8), expected.view(np.uint8))
    products = jax.jit(lambda x: x[:, None] * x[None, :])(kept)
    wide = kept.astype(np.float32)
    with np.errstate(invalid="ignore"):  # of infinities and zero
        exact = np.multiply.outer(wide, wide)
    rounded = exact.astype(kept.dtype)
    np.testing.assert_array_equal(
        np.asarray(products).astype(np.float32), rounded.astype(np.float32)
    )
