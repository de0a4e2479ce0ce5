"""Whether what a plugin gives is what NumPy does, and the numbers that programs begin with."""

from __future__ import annotations

from typing import Any

from harness.conformance.jax_programs.late import jax, np


def normal(*shape: int, seed: int = 0) -> Any:
    """Return normally distributed numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def agree(actual: Any, expected: Any) -> None:
    """Raise AssertionError unless two trees of arrays, numbers or words agree."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected), (
        f"the structure is {jax.tree.structure(actual)}, not {jax.tree.structure(expected)}"
    )
    for leaf, right in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if isinstance(leaf, str | bool | int | type(None)):
            assert leaf == right, f"{leaf!r}, not {right!r}"
            continue
        value, wanted = np.asarray(leaf), np.asarray(right)
        assert value.shape == wanted.shape, f"the shape is {value.shape}, not {wanted.shape}"
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(value.astype(wanted.dtype), wanted)
            continue
        tolerance = {8: 1e-12, 16: 1e-12, 2: 2e-2}.get(value.dtype.itemsize, 2e-5)
        if value.dtype == np.complex64:
            tolerance = 2e-5
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        value, wanted = value.astype(wide), wanted.astype(wide)
        largest = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance * largest)
