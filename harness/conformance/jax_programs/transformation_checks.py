"""Transformations: derivatives, batches, and what they do inside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, lax, np

Pairs = Iterator[tuple[Any, Any]]


@program()
def jit_of_arithmetic() -> Pairs:
    """Compile arithmetic, a matrix product and a reduction."""
    a, b = normal(3, 4), normal(4, 5, seed=1)
    function = jax.jit(lambda a, b: (a @ b, jnp.sum(a * 2 - 1, axis=0), jnp.max(b)))
    yield function(a, b), (a @ b, (a * 2 - 1).sum(0), b.max())


@program()
def grad() -> Pairs:
    """Differentiate a sum of squares of tanh."""
    x = normal(7)
    t = np.tanh(x)

    def function(x: Any) -> Any:
        return jnp.sum(jnp.tanh(x) ** 2)

    yield function(x), np.sum(t**2)  # which the gradient computes, and leaves
    yield jax.grad(function)(x), 2 * t * (1 - t**2)


@program()
def value_and_grad_of_two() -> Pairs:
    """Differentiate in two arguments, with an auxiliary result."""
    a, b = normal(4), normal(4, seed=1)

    def function(a: Any, b: Any) -> Any:
        return jnp.sum(a * a * b), a + b

    actual = jax.jit(jax.value_and_grad(function, argnums=(0, 1), has_aux=True))(a, b)
    yield actual, (((a * a * b).sum(), a + b), (2 * a * b, a * a))


@program()
def grad_of_grad() -> Pairs:
    """Differentiate a polynomial three times."""
    third = jax.grad(jax.grad(jax.grad(lambda x: x**5 - 2 * x**3)))
    yield jax.jit(third)(1.5), np.float32(60 * 1.5**2 - 12)


@program()
def jvp() -> Pairs:
    """Push a tangent through a matrix product and sine."""
    a, x, v = normal(3, 3), normal(3, seed=1), normal(3, seed=2)
    actual = jax.jit(lambda x, v: jax.jvp(lambda x: jnp.sin(a @ x), (x,), (v,)))(x, v)
    yield actual, (np.sin(a @ x), np.cos(a @ x) * (a @ v))


@program()
def vjp() -> Pairs:
    """Pull a cotangent back through a matrix product."""
    a, b, ct = normal(2, 3), normal(3, 4, seed=1), normal(2, 4, seed=2)

    def pulled(a: Any, b: Any, ct: Any) -> Any:
        value, pull = jax.vjp(jnp.matmul, a, b)
        return value, pull(ct)

    yield jax.jit(pulled)(a, b, ct), (a @ b, (ct @ b.T, a.T @ ct))


@program()
def jacobians() -> Pairs:
    """Compute Jacobians forwards and backwards."""
    a, x = normal(3, 4), normal(4, seed=1)
    expected = np.cos(a @ x)[:, None] * a
    for transform in (jax.jacfwd, jax.jacrev):
        yield jax.jit(transform(lambda x: jnp.sin(a @ x)))(x), expected


@program()
def hessian() -> Pairs:
    """Compute the second derivatives of a quadratic form."""
    a, x = normal(4, 4), normal(4, seed=1)
    yield jax.jit(jax.hessian(lambda x: x @ a @ x))(x), a + a.T


@program()
def custom_vjp() -> Pairs:
    """Use a program's own rule in place of the derivative."""
    clipped = jax.custom_vjp(lambda x: x * x)

    def forward(x: Any) -> Any:
        return x * x, x

    def backward(x: Any, ct: Any) -> Any:
        return (jnp.clip(2 * x * ct, -1, 1),)

    clipped.defvjp(forward, backward)
    x = np.array([-3.0, -0.25, 0.125, 3.0], "float32")
    yield jax.jit(jax.grad(lambda x: clipped(x).sum()))(x), np.clip(2 * x, -1, 1)
    yield jax.jit(clipped)(x), x * x


@program()
def custom_jvp() -> Pairs:
    """Use a program's own forward rule, transposed for a gradient."""
    cube = jax.custom_jvp(lambda x: x**3)
    cube.defjvps(lambda t, _, x: 7 * t * x)
    x = normal(5)
    yield jax.jit(jax.grad(lambda x: cube(x).sum()))(x), 7 * x


@program()
def remat() -> Pairs:
    """Compute values again in place of keeping them."""
    x = normal(6)
    function = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    expected = np.cos(np.sin(x)) * np.cos(x)
    yield jax.jit(jax.grad(lambda x: function(x).sum()))(x), expected


@program()
def vmap_of_product() -> Pairs:
    """Batch a product over different axes of its operands."""
    a, b = normal(3, 4, 5), normal(5, 2, 3, seed=1)
    batched = jax.vmap(jnp.matmul, in_axes=(0, 2), out_axes=1)
    yield jax.jit(batched)(a, b), np.einsum("nij,jkn->ink", a, b)


@program()
def vmap_of_vmap() -> Pairs:
    """Batch twice for all pairs of rows."""
    a, b = normal(3, 6), normal(4, 6, seed=1)
    distances = jax.vmap(jax.vmap(lambda x, y: jnp.sum((x - y) ** 2), (None, 0)), (0, None))
    yield jax.jit(distances)(a, b), ((a[:, None] - b[None]) ** 2).sum(-1)


@program()
def gradients_of_a_batch() -> Pairs:
    """Compute one gradient for each example of a batch."""
    w, x, y = normal(5), normal(8, 5, seed=1), normal(8, seed=2)
    each = jax.vmap(jax.grad(lambda w, x, y: (x @ w - y) ** 2), (None, 0, 0))
    yield jax.jit(each)(w, x, y), 2 * (x @ w - y)[:, None] * x


@program()
def vmap_of_cond() -> Pairs:
    """Batch a branch, which becomes a selection."""
    x = normal(9)
    function = jax.vmap(lambda x: lax.cond(x > 0, lambda x: x * 3, lambda x: x - 1, x))
    yield jax.jit(function)(x), np.where(x > 0, x * 3, x - 1)


@program()
def vmap_with_a_named_axis() -> Pairs:
    """Sum over the axis of a batch by its name."""
    x = normal(4, 3)
    yield (
        jax.jit(jax.vmap(lambda x: x - lax.pmean(x, "n"), axis_name="n"))(x),
        x - x.mean(0),
    )


@program()
def grad_of_scan() -> Pairs:
    """Differentiate a recurrence in its carry and its inputs."""
    xs = normal(5) * np.float32(0.5)

    def total(start: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (c * x + 1, None), start, xs)[0]

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(np.float32(0.7), xs)
    carries = [0.7]
    for x in xs:
        carries.append(carries[-1] * x + 1)
    right = np.append(np.cumprod(xs[::-1])[::-1][1:], 1)
    yield gradients, (np.float32(np.prod(xs)), (np.array(carries[:-1]) * right).astype("f"))


@program()
def stop_gradient() -> Pairs:
    """Hold a factor constant."""
    x = normal(4)
    yield jax.jit(jax.grad(lambda x: jnp.sum(lax.stop_gradient(x) * x)))(x), x


@program()
def linear_transpose() -> Pairs:
    """Transpose a convolution."""
    x, kernel, ct = normal(10), normal(3, seed=1), normal(8, seed=2)
    transposed = jax.linear_transpose(lambda x: jnp.convolve(x, kernel, mode="valid"), x)
    yield jax.jit(transposed)(ct), (np.convolve(ct, kernel[::-1], mode="full"),)


@program()
def training_step() -> Pairs:
    """Take twenty steps of gradient descent on a small network."""
    x, y = normal(16, 3), normal(16, 1, seed=1)
    first, second = normal(3, 4, seed=2), normal(4, 1, seed=3)

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights["a"]) @ weights["b"] - y) ** 2)

    def step(weights: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.05 * g, weights, slopes)

    compiled, weights = jax.jit(step), {"a": first, "b": second}
    a, b = first.astype("float64"), second.astype("float64")
    for _ in range(20):
        value, weights = compiled(weights)
        hidden = np.tanh(x @ a)
        error = hidden @ b - y
        back = (2 / 16) * error
        slope_b, slope_a = hidden.T @ back, x.T @ ((back @ b.T) * (1 - hidden**2))
        wanted = (error**2).mean()
        a, b = a - 0.05 * slope_a, b - 0.05 * slope_b
    yield value, wanted
    yield weights, {"a": a, "b": b}
