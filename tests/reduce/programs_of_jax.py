"""A script: the reference interpreter computes what JAX computes, and sees what is changed.

It runs in a process of its own, in which JAX may start its client.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from harness.oracles.jax_cpu import cpu_devices
from harness.reduce import oracle

DEVICES = np.array(cpu_devices(4)).reshape(2, 2)
MESH = jax.sharding.Mesh(DEVICES, ("x", "y"))
BY_ROWS, BOTH = PartitionSpec("x"), PartitionSpec("x", "y")
INTEGERS = np.random.default_rng(0).integers(-4, 5, (8, 4)).astype(np.float32)


def by_hand(function: Callable[[Any], Any], out: Any = BOTH) -> Any:
    """Return a function that each device computes of its part."""
    mapped = jax.shard_map(function, mesh=MESH, in_specs=BOTH, out_specs=out, check_vma=False)
    return jax.jit(mapped)


def exchanges(x: Any) -> Any:
    total = lax.psum(x, "x") + lax.pmax(x, ("x", "y")) - lax.pmin(x, "y")
    rows = lax.all_gather(total, "y", tiled=True)
    parts = lax.psum_scatter(rows, "y", tiled=True)
    moved = lax.ppermute(parts, "x", [(0, 1)])
    return lax.all_to_all(moved, "y", 0, 0, tiled=True) * (1 + lax.axis_index("x"))


def loop(x: Any) -> Any:
    def body(state: Any) -> Any:
        number, value = state
        return number + 1, 2 * lax.psum(value, "y") - x

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]


def scanned(x: Any) -> Any:
    final, every = lax.scan(lambda c, row: (c + row.sum(), c * row), jnp.float32(0), x)
    pinned = lax.with_sharding_constraint(every, NamedSharding(MESH, BY_ROWS))
    return jnp.where(pinned > 0, pinned, final).T @ x


def of_halves(x: Any) -> Any:
    halves = x.astype(jnp.bfloat16)
    return jnp.sort(halves, 0)[::2] > 0, halves.sum(1), jnp.argmax(x, 1).astype(jnp.uint8)


PROGRAMS = {
    "exchanges": by_hand(exchanges),
    "loop": by_hand(loop),
    "whole": by_hand(lambda x: lax.all_gather(x, ("x", "y")), PartitionSpec()),
    "scanned": jax.jit(scanned),
    "halves": jax.jit(of_halves),
}
CHANGES = {
    "exchanges": [
        (r"stablehlo\.maximum", "stablehlo.minimum"),
        (r"\[\[0, 1\], \[2, 3\]\]", "[[0, 2], [1, 3]]"),
        (r"pairs = dense<\[\[0, 2\], \[1, 3\]\]>", "pairs = dense<[[2, 0], [3, 1]]>"),
    ],
    "loop": [(r"dense<3>", "dense<4>")],
    "scanned": [(r"compare  GT", "compare  LT")],
}


def main() -> int:
    """Print what differs; return 1 if something does, or if a change is not seen."""
    faults = []
    placed = jax.device_put(INTEGERS, NamedSharding(MESH, BOTH))
    for name, program in PROGRAMS.items():
        text = program.lower(placed).as_text()
        right = jax.tree.leaves(jax.device_get(program(placed)))
        own = oracle.results(text, [INTEGERS])
        faults += [f"{name}: {a} {b}" for a, b in zip(right, own, strict=True) if not same(a, b)]
        for pattern, other in CHANGES.get(name, ()):
            changed, count = re.subn(pattern, other, text)
            assert count, (name, pattern, text)
            own = oracle.results(changed, [INTEGERS])
            if all(same(a, b) for a, b in zip(right, own, strict=True)):
                faults.append(f"{name}: {pattern} changes nothing")
    sys.stdout.write("\n".join(faults))
    return bool(faults)


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


if __name__ == "__main__":
    sys.exit(main())
