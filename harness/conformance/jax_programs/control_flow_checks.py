"""Control flow: branches, loops and scans, and what they do inside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, lax, np

Pairs = Iterator[tuple[Any, Any]]


@program()
def cond() -> Pairs:
    """Take either branch of one program."""
    x = normal(3)
    function = jax.jit(lambda p, x: lax.cond(p, lambda x: x + 1, lambda x: x * 2, x))
    yield function(True, x), x + 1
    yield function(False, x), x * 2


@program()
def switch() -> Pairs:
    """Take each of four branches; an index out of range is the nearest branch."""
    x = normal(3)
    branches = [lambda x, n=n: x * (n + 2) - n for n in range(4)]
    function = jax.jit(lambda n, x: lax.switch(n, branches, x))
    for index, branch in ((-5, 0), (0, 0), (1, 1), (2, 2), (3, 3), (9, 3)):
        yield function(np.int32(index), x), x * (branch + 2) - branch


@program()
def while_loop() -> Pairs:
    """Count the steps of Collatz' sequence."""

    def step(state: Any) -> Any:
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    function = jax.jit(lambda n: lax.while_loop(lambda s: s[0] != 1, step, (n, 0)))
    for start, steps in ((1, 0), (6, 8), (27, 111)):
        yield function(np.int32(start)), (np.int32(1), np.int32(steps))


@program()
def fori_loop() -> Pairs:
    """Loop from and to numbers that the program is given, also to no turn at all."""
    function = jax.jit(lambda low, high: lax.fori_loop(low, high, lambda i, s: s * 2 + i, 1))
    for low, high in ((0, 5), (3, 9), (4, 4), (5, 2)):
        expected = 1
        for number in range(low, high):
            expected = expected * 2 + number
        yield function(low, high), np.int32(expected)


@program()
def scan() -> Pairs:
    """Scan with a carry of two, and stacked results."""
    xs = normal(6)

    def step(carry: Any, x: Any) -> Any:
        total, least = carry
        return (total + x, jnp.minimum(least, x)), total * x

    start = (np.float32(0.5), np.float32(9))
    before = np.float32(0.5) + np.concatenate([[0], np.cumsum(xs)[:-1]]).astype("f")
    expected = ((np.float32(0.5) + xs.sum(), xs.min()), before * xs)
    yield jax.jit(lambda xs: lax.scan(step, start, xs))(xs), expected


@program()
def scan_in_reverse() -> Pairs:
    """Scan from the end; results keep their places."""
    xs = np.arange(1, 7, dtype="int32")
    function = jax.jit(lambda xs: lax.scan(lambda c, x: (c * 2 + x, c - x), 3, xs, reverse=True))
    carry, ys = 3, [0] * 6
    for place in reversed(range(6)):
        ys[place] = carry - xs[place]
        carry = carry * 2 + xs[place]
    yield function(xs), (np.int32(carry), np.array(ys, "int32"))


@program()
def scan_unrolled() -> Pairs:
    """Unroll a scan whose length the factor does not divide."""
    xs = normal(7)
    function = jax.jit(lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs, unroll=3))
    yield function(xs), (xs.sum(), np.concatenate([[0], np.cumsum(xs)[:-1]]))


@program()
def scan_without_inputs() -> Pairs:
    """Scan a number of turns over a tree without arrays."""
    function = jax.jit(lambda c: lax.scan(lambda c, _: (c * 3 % 101, c), c, None, length=8))
    values = [7]
    for _ in range(8):
        values.append(values[-1] * 3 % 101)
    yield function(np.int32(7)), (np.int32(values[-1]), np.array(values[:-1], "int32"))


@program()
def scan_of_no_turns() -> Pairs:
    """Scan over an axis of size zero."""
    function = jax.jit(lambda xs: lax.scan(lambda c, x: (c + x.sum(), x * 2), 1.5, xs))
    yield function(np.zeros((0, 3), "f")), (np.float32(1.5), np.zeros((0, 3), "f"))


@program()
def loop_in_loop() -> Pairs:
    """Fill a table with two loops and a branch."""

    def entry(i: Any, j: Any, table: Any) -> Any:
        value = lax.cond(i > j, lambda: i * 10 + j, lambda: j - i)
        return table.at[i, j].set(value)

    def row(i: Any, table: Any) -> Any:
        return lax.fori_loop(0, 4, lambda j, t: entry(i, j, t), table)

    function = jax.jit(lambda: lax.fori_loop(0, 5, row, jnp.zeros((5, 4), int)))
    i, j = np.mgrid[:5, :4]
    yield function(), np.where(i > j, i * 10 + j, j - i).astype("int32")


@program()
def while_in_scan() -> Pairs:
    """Compute greatest common divisors by a loop inside a scan."""
    pairs = np.array([[12, 18], [17, 5], [0, 9], [64, 48]], "int32")

    def divisor(_: Any, pair: Any) -> Any:
        low, high = pair
        turn = lax.while_loop(lambda s: s[1] > 0, lambda s: (s[1], s[0] % s[1]), (high, low))
        return None, turn[0]

    yield (
        jax.jit(lambda p: lax.scan(divisor, None, p)[1])(pairs),
        np.gcd(pairs[:, 0], pairs[:, 1]),
    )


@program()
def vmap_of_while() -> Pairs:
    """Batch a loop whose members end at different turns."""
    xs = np.array([1, 5, 40, 300, 7000], "int32")
    halvings = jax.vmap(
        lambda x: lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (x, 0))[1]
    )
    yield jax.jit(halvings)(xs), np.floor(np.log2(xs)).astype("int32")


@program()
def associative_scan() -> Pairs:
    """Multiply matrices cumulatively."""
    ms = normal(6, 2, 2)
    expected = [ms[0]]
    for matrix in ms[1:]:
        expected.append(expected[-1] @ matrix)
    yield jax.jit(lambda m: lax.associative_scan(jnp.matmul, m))(ms), np.stack(expected)


@program()
def map_over_a_tree() -> Pairs:
    """Map a function over the leading axis of two arrays."""
    a, b = normal(5, 2), normal(5, seed=1)
    function = jax.jit(lambda a, b: lax.map(lambda t: {"s": t[0] * t[1], "n": -t[1]}, (a, b)))
    yield function(a, b), {"s": a * b[:, None], "n": -b}


@program()
def carry_of_many_types() -> Pairs:
    """Carry bits, bytes, halves and complex numbers through a loop."""

    def turn(_: Any, s: Any) -> Any:
        bit, byte, half, pair = s
        return ~bit, (byte * 3 + 1).astype("uint8"), half / 2, pair * jnp.complex64(1j)

    start = (np.bool_(True), np.uint8(7), np.float16(8), np.complex64(1 + 2j))
    byte = 7
    for _ in range(5):
        byte = (byte * 3 + 1) % 256
    expected = np.bool_(False), np.uint8(byte), np.float16(0.25), np.complex64((1 + 2j) * 1j)
    yield jax.jit(lambda s: lax.fori_loop(0, 5, turn, s))(start), expected
