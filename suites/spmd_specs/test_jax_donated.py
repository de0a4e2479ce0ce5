"""Which arguments of a jitted function are given away, by number and by name, before it runs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from suites.shared.jax_releases import since_0_5

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1"),
    pytest.mark.upstream("jax-ml/jax#16906"),
    since_0_5,
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7), reason="what JAX before 0.7 traced says nothing of arguments"
    ),
]
X = np.zeros(3, np.float32)
NAMES = ("first", "second", "c", "d", "last")
DONATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "nothing": ({}, {}, set()),
    "before it": ({"donate_argnums": 0}, {"static_argnums": 1}, {"first"}),
    "around it": ({"donate_argnums": (2, 0)}, {"static_argnums": 1}, {"first", "second"}),
    "a tree behind it": ({"donate_argnums": [3]}, {"static_argnums": (1,)}, {"c", "d"}),
    "all": (
        {"donate_argnums": (3, 0, 2, 0), "donate_argnames": "last"},
        {"static_argnames": "n"},
        set(NAMES),
    ),
}
WRONG: dict[str, dict[str, Any]] = {
    "static": {"donate_argnums": (0, 1), "static_argnums": 1},
}


def step(first: Any, n: Any, second: Any, tree: Any, *, last: Any) -> Any:
    del n
    return first, second, tree, last


def donated(**options: Any) -> set[str]:
    """Return the names of the arguments that are given away."""
    is_static = "static_argnums" in options or "static_argnames" in options
    jitted = jax.jit(step, **options)
    traced = jitted.trace(X, 3 if is_static else X, X, {"c": X, "d": X}, last=X)
    infos = jax.tree.leaves(traced.args_info)
    names = NAMES if is_static else ("first", "n", *NAMES[1:])
    return {name for name, info in zip(names, infos, strict=True) if info.donated}


def test_donated(subtests: pytest.Subtests) -> None:
    jax.devices()
    for name, (options, static, gone) in DONATIONS.items():
        with subtests.test(name=name):
            assert donated(**options, **static) == gone
    for name, options in WRONG.items():
        with subtests.test(wrong=name), pytest.raises((TypeError, ValueError)):
            donated(**options)
