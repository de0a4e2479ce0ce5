"""Types of numbers: how they are promoted, and which ones a plugin has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, lax, np

Pairs = Iterator[tuple[Any, Any]]


@program()
def weak_types() -> Pairs:
    """Add Python's numbers, which take the type of the array."""
    add = jax.jit(lambda x, n: x + n)
    for name in ("int8", "float16", "bfloat16", "float32"):
        result = add(jnp.ones(2, name), 3)
        yield (str(result.dtype), result), (name, np.float32([4, 4]))
    yield str(add(jnp.ones(2, "int32"), 0.5).dtype), "float32"


@program()
def promotion() -> Pairs:
    """Add arrays of two types."""
    for left, right, both in (
        ("uint8", "int8", "int16"),
        ("int32", "float16", "float16"),
        ("bfloat16", "float16", "float32"),
        ("bool", "uint8", "uint8"),
        ("float32", "complex64", "complex64"),
    ):
        result = jax.jit(jnp.add)(jnp.ones(3, left), jnp.ones(3, right))
        yield (str(result.dtype), result.real), (both, np.float32([2, 2, 2]))


@program()
def x64() -> Pairs:
    """Compute with 64 bits where a program asks for them."""
    jax.config.update("jax_enable_x64", True)
    try:
        x = np.random.default_rng(0).standard_normal(5)
        yield jax.jit(lambda x: jnp.sin(x) * 2)(x), np.sin(x) * 2
        yield jax.jit(lambda n: n * n + 1)(np.int64(3_000_000_019)), np.int64(3_000_000_019**2 + 1)
    finally:
        jax.config.update("jax_enable_x64", False)


@program()
def bfloat16() -> Pairs:
    """Multiply matrices of bfloat16, with sums in float32."""
    a, b = jnp.asarray(normal(4, 16), "bfloat16"), jnp.asarray(normal(16, 3, seed=1), "bfloat16")
    product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type="float32"))(a, b)
    yield (
        (str(product.dtype), product),
        (
            "float32",
            np.asarray(a).astype("float32") @ np.asarray(b).astype("float32"),
        ),
    )
    rounded = jax.jit(lambda x: lax.convert_element_type(x, "bfloat16"))(np.float32([1.00390625]))
    yield rounded.astype("float32"), np.float32([1.0])


@program()
def int8() -> Pairs:
    """Wrap around in 8 bits, and sum products in 32."""
    x = np.array([-128, -1, 100, 127], "int8")
    yield jax.jit(lambda x: x + x)(x), x + x
    product = jax.jit(lambda x: lax.dot(x, x, preferred_element_type=jnp.int32))(x)
    yield product, np.int32(128 * 128 + 1 + 100 * 100 + 127 * 127)


@program(optional="integers of 4 bits")
def int4() -> Pairs:
    """Take integers of 4 bits into a program, compute with them, and read them."""
    x = jnp.asarray(np.arange(-8, 8, dtype="int8"), "int4")
    yield str(x.dtype), "int4"
    yield jax.jit(lambda x: x.astype("int8") * 3)(x), np.arange(-8, 8) * 3
    yield jax.jit(lambda x: x[::-1])(x).astype("int8"), np.arange(-8, 8)[::-1]


@program(optional="floating-point numbers of 8 bits")
def float8() -> Pairs:
    """Round to 8 bits and back."""
    x = np.float32([0.3, -1.1, 17, 448])
    function = jax.jit(lambda x: x.astype("float8_e4m3fn").astype("float32"))
    yield function(x), np.float32([0.3125, -1.125, 16, 448])


@program()
def bits_of_another_type() -> Pairs:
    """Read the bits of floating-point numbers as integers."""
    x = normal(6)
    yield jax.jit(lambda x: lax.bitcast_convert_type(x, jnp.int32))(x), x.view("int32")


@program()
def special_numbers() -> Pairs:
    """Keep NaN, infinities and the sign of zero through a program."""
    x = np.float32([np.nan, np.inf, -np.inf, -0.0])
    yield jax.jit(lambda x: x * 1)(x), x
    yield jax.jit(jnp.signbit)(x), np.signbit(x)
    yield jax.jit(jnp.nan_to_num)(x), np.nan_to_num(x)
