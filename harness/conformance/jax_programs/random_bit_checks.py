"""Random numbers: bits as Threefry's authors define them, computed here without JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, np

Pairs = Iterator[tuple[Any, Any]]


def threefry(key: Any, counts: Any) -> Any:
    """Return Threefry-2x32 with 20 rounds, for two rows of counts.

    Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC11).
    """
    a, b = (np.asarray(each, np.uint32) for each in counts)
    keys = [*(np.uint32(k) for k in key), np.uint32(key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))]
    rotations = (13, 15, 26, 6), (17, 29, 16, 24)
    with np.errstate(over="ignore"):
        a, b = a + keys[0], b + keys[1]
        for group in range(5):
            for turn in rotations[group % 2]:
                a = a + b
                b = (b << np.uint32(turn) | b >> np.uint32(32 - turn)) ^ a
            a = a + keys[(group + 1) % 3]
            b = b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack([a, b])


def bits_of(key: Any, count: int) -> Any:
    """Return the bits that JAX's partitionable layout has for a flat array."""
    a, b = threefry(key, (np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32)))
    return a ^ b


@program()
def key_data() -> Pairs:
    """Make keys of seeds."""
    for seed in (0, 42, 2**31 - 1):
        yield jax.random.key_data(jax.random.key(seed)), np.array([0, seed], np.uint32)


@program()
def known_answers() -> Pairs:
    """Compute the three vectors that the authors of Threefry publish."""
    from jax.extend.random import threefry_2x32

    high = np.uint32(0xFFFFFFFF)
    pi = np.array([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], np.uint32)
    for key, counts, answer in (
        ([0, 0], [0, 0], [0x6B200159, 0x99BA4EFE]),
        ([high] * 2, [high] * 2, [0x1CB996FC, 0xBB002BE7]),
        (pi[2:], pi[:2], [0xC4923A9C, 0x483DF7A0]),
    ):
        words = np.array(key, np.uint32), np.array(counts, np.uint32)
        yield jax.jit(threefry_2x32)(*words), np.array(answer, np.uint32)


@program()
def bits() -> Pairs:
    """Draw bits of 32 and 16 bits width."""
    jax.config.update("jax_threefry_partitionable", True)
    key = jax.random.key(7)
    expected = bits_of((0, 7), 12)
    yield jax.random.bits(key, (3, 4)), expected.reshape(3, 4)
    yield jax.random.bits(key, (12,), "uint16"), expected.astype(np.uint16)


@program()
def split() -> Pairs:
    """Split a key."""
    jax.config.update("jax_threefry_partitionable", True)
    counts = np.zeros(5, np.uint32), np.arange(5, dtype=np.uint32)
    keys = jax.jit(lambda key: jax.random.split(key, 5))(jax.random.key(3))
    yield jax.random.key_data(keys), threefry((0, 3), counts).T


@program()
def fold_in() -> Pairs:
    """Fold a number into a key."""
    key = jax.jit(jax.random.fold_in)(jax.random.key(3), 99)
    yield jax.random.key_data(key), threefry((0, 3), ([0], [99]))[:, 0]


@program()
def uniform() -> Pairs:
    """Draw from the interval [2, 5), whose numbers follow from the bits."""
    jax.config.update("jax_threefry_partitionable", True)
    mantissa = bits_of((0, 11), 64) >> np.uint32(9) | np.uint32(0x3F800000)
    unit = mantissa.view(np.float32) - np.float32(1)
    function = jax.jit(lambda key: jax.random.uniform(key, (64,), minval=2.0, maxval=5.0))
    yield function(jax.random.key(11)), np.maximum(unit * np.float32(3) + np.float32(2), 2)


@program()
def normal_moments() -> Pairs:
    """Draw normal numbers: the inverse error function of uniform ones."""
    jax.config.update("jax_threefry_partitionable", True)
    from statistics import NormalDist

    mantissa = bits_of((0, 5), 256) >> np.uint32(9) | np.uint32(0x3F800000)
    unit = mantissa.view(np.float32).astype("float64") - 1
    expected = [NormalDist().inv_cdf(min(max(u, 1e-9), 1 - 1e-9)) for u in unit]
    actual = jax.jit(lambda key: jax.random.normal(key, (256,)))(jax.random.key(5))
    yield actual, np.array(expected, "float32")


@program()
def permutation() -> Pairs:
    """Permute numbers: none is lost, and the order changes."""
    drawn = jax.jit(lambda key: jax.random.permutation(key, 100))(jax.random.key(1))
    yield jnp.sort(drawn), np.arange(100)
    yield bool((np.asarray(drawn) != np.arange(100)).sum() > 80), True


@program()
def key_arrays() -> Pairs:
    """Index, stack and batch typed keys."""
    jax.config.update("jax_threefry_partitionable", True)
    keys = jax.random.split(jax.random.key(0), 4)
    draw = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (3,))))
    rows = threefry((0, 0), (np.zeros(4, np.uint32), np.arange(4, dtype=np.uint32))).T
    yield draw(keys), np.stack([bits_of(tuple(row), 3) for row in rows])
    stacked = jax.random.key_data(jnp.stack([keys[2], keys[0]]))
    yield stacked, rows[[2, 0]]
