"""A script: the reference interpreter computes what JAX computes, and sees what is changed.

It runs in a process of its own, in which JAX may start its client.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
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


def over_one_axis(x: Any) -> Any:
    """Each row of devices has a part, which JAX divides by columns as it likes."""

    def half(part: Any) -> Any:
        total = lax.psum(part, "x") * (1 + lax.axis_index("x"))
        moved = lax.ppermute(part, "x", [(0, 1), (1, 0)])
        return total + lax.all_gather(part, "x", tiled=True)[:4] - moved

    parts = partial(jax.shard_map, mesh=MESH, in_specs=BY_ROWS, out_specs=BY_ROWS)
    mapped = parts(half, axis_names={"x"}, check_vma=False)
    return mapped(x) + x


def within(x: Any) -> Any:
    """A computation that is manual over the second axis within one over the first."""

    def inner(part: Any) -> Any:
        return lax.psum(part, "y") - part

    columns = PartitionSpec(None, "y")

    def outer(part: Any) -> Any:
        sums = jax.shard_map(inner, in_specs=columns, out_specs=columns, axis_names={"y"})
        return sums(part) + lax.psum(part, "x")

    return jax.shard_map(outer, mesh=MESH, in_specs=BY_ROWS, out_specs=BY_ROWS, axis_names={"x"})(x)


def replicated(x: Any) -> Any:
    moved = lax.ppermute(x, "i", [(n, (n + 1) % 4) for n in range(4)])
    return lax.psum(x, "i") + moved * lax.axis_index("i")


PROGRAMS = {
    "over_one_axis": jax.jit(over_one_axis),
    "within": jax.jit(within),
    "exchanges": by_hand(exchanges),
    "loop": by_hand(loop),
    "whole": by_hand(lambda x: lax.all_gather(x, ("x", "y")), PartitionSpec()),
    "scanned": jax.jit(scanned),
    "halves": jax.jit(of_halves),
}
CHANGES = {
    "replicated": [
        (r"\[0, 1\], \[1, 2\]", "[0, 2], [1, 1]"),
        ("stablehlo.replica_id", "stablehlo.partition_id"),
    ],
    "over_one_axis": [
        (r"pairs = dense<[\]\[\d, ]+>", "pairs = dense<[[0, 0], [1, 1], [2, 2], [3, 3]]>"),
        (r"divide %(\w+), %(\w+)", r"multiply %\1, %\2"),
    ],
    "within": [(r"\[\[0, 1\], \[2, 3\]\]", "[[0, 3], [1, 2]]")],
    "exchanges": [
        (r"stablehlo\.maximum", "stablehlo.minimum"),
        (r"\[\[0, 1\], \[2, 3\]\]", "[[0, 2], [1, 3]]"),
        (r"pairs = dense<\[\[0, 2\], \[1, 3\]\]>", "pairs = dense<[[2, 0], [3, 1]]>"),
    ],
    "loop": [(r"dense<3>", "dense<4>")],
    "scanned": [(r"compare +GT", "compare LT")],
}


# How a part is divided further says nothing of what it is.
DIVIDED = {"over_one_axis": ('in_shardings=[<@mesh, [{"x", ?}, {?}]>]', '{"x"}, {"y"}')}


def main() -> int:
    """Print what differs; return 1 if something does, or if a change is not seen."""
    faults, right = [], {}
    placed = jax.device_put(INTEGERS, NamedSharding(MESH, BOTH))
    for is_shardy, (name, program) in product([True, False], PROGRAMS.items()):
        jax.config.update("jax_use_shardy_partitioner", is_shardy)
        text = program.lower(placed).as_text()
        if is_shardy:  # XLA's other partitioner aborts at some of these programs
            right[name] = jax.tree.leaves(jax.device_get(program(placed)))
        if is_shardy and name in DIVIDED:
            before, after = DIVIDED[name]
            assert before in text
            text = text.replace(before, before.replace('{"x", ?}, {?}', after))
        faults += differences(
            name, text, right[name], partial(oracle.results, arguments=[INTEGERS])
        )
    by_replicas = jax.pmap(replicated, axis_name="i")
    rows = INTEGERS.reshape(4, 2, 4)
    text = by_replicas.lower(rows).as_text()
    own = partial(oracle.parts, arguments=[[row[None] for row in rows]], count=4)
    result = [np.asarray(by_replicas(rows))]
    faults += differences("replicated", text, result, lambda t: [np.concatenate(own(t)[0])])
    sys.stdout.write("\n".join(faults))
    return bool(faults)


def differences(name: str, text: str, right: Any, compute: Callable[[str], Any]) -> list[str]:
    """Return what differs from JAX's results, and what changes that are not seen."""
    own = compute(text)
    faults = [f"{name}: {a} {b}" for a, b in zip(right, own, strict=True) if not same(a, b)]
    for pattern, other in CHANGES.get(name, ()):
        changed, count = re.subn(pattern, other, text)
        assert count, (name, pattern, text)
        if all(same(a, b) for a, b in zip(right, compute(changed), strict=True)):
            faults.append(f"{name}: {pattern} changes nothing")
    return faults


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())


if __name__ == "__main__":
    sys.exit(main())
