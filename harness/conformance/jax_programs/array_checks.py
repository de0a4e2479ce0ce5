"""Arrays: sorting, indexing, scans, products, transforms, and what NumPy's functions need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.conformance.jax_programs.agreement import normal
from harness.conformance.jax_programs.compared_program import program
from harness.conformance.jax_programs.late import jax, jnp, lax, np

Pairs = Iterator[tuple[Any, Any]]


@program()
def sort() -> Pairs:
    """Sort along either axis, and downwards."""
    x = normal(6, 5)
    yield jax.jit(jnp.sort)(x), np.sort(x)
    yield jax.jit(lambda x: jnp.sort(x, axis=0, descending=True))(x), -np.sort(-x, axis=0)


@program()
def argsort() -> Pairs:
    """Sort indices; equal numbers keep their order."""
    x = np.array([3, 1, 3, 2, 1, 1, 0], "int32")
    yield jax.jit(jnp.argsort)(x), np.argsort(x, stable=True)


@program()
def sort_by_two_keys() -> Pairs:
    """Sort a payload by two keys."""
    a, b = np.array([2, 1, 2, 1], "int32"), np.array([9, 8, 7, 6], "int32")
    order = np.lexsort((b, a))
    actual = jax.jit(lambda *x: lax.sort(x, num_keys=2))(a, b, np.arange(4))
    yield list(actual), [a[order], b[order], order]


@program()
def top_k() -> Pairs:
    """Take the largest numbers of each row, and their places."""
    x = np.random.default_rng(0).permutation(60).reshape(4, 15).astype("float32")
    places = np.argsort(-x, axis=1)[:, :3]
    yield tuple(jax.jit(lambda x: lax.top_k(x, 3))(x)), (np.take_along_axis(x, places, 1), places)


@program()
def updates() -> Pairs:
    """Set, add to and multiply places, some of them twice and some out of bounds."""
    x, index = np.arange(6.0, dtype="float32"), np.array([1, 4, 1])
    added, scaled = x.copy(), x.copy()
    np.add.at(added, index, 10)
    np.multiply.at(scaled, index, 2)
    yield jax.jit(lambda x: x.at[index].add(10.0))(x), added
    yield jax.jit(lambda x: x.at[index].multiply(2.0))(x), scaled
    yield jax.jit(lambda x: x.at[9].set(7.0, mode="drop"))(x), x
    yield jax.jit(lambda x: x.at[1:3].set(0.0).at[-1].min(-1.0))(x), np.float32([0, 0, 0, 3, 4, -1])


@program()
def reads() -> Pairs:
    """Read with arrays, masks of a place, slices backwards, and starts that are computed."""
    x, rows = normal(5, 4), np.array([4, 0, 4])
    yield jax.jit(lambda x: x[rows, 1:])(x), x[rows, 1:]
    yield jax.jit(lambda x: x[::-2, ..., None])(x), x[::-2, ..., None]
    yield jax.jit(lambda x, n: lax.dynamic_slice(x, (n, 9), (2, 3)))(x, 1), x[1:3, 1:]
    yield jnp.asarray(x)[x > 0], x[x > 0]


@program()
def einsum() -> Pairs:
    """Contract three operands, and take a trace."""
    a, b, c = normal(2, 3, 4), normal(4, 5, seed=1), normal(5, 3, seed=2)
    text = "bij,jk,ki->b"
    yield jax.jit(lambda *x: jnp.einsum(text, *x))(a, b, c), np.einsum(text, a, b, c)
    yield jax.jit(lambda x: jnp.einsum("ii->", x))(a[:, :2, 0]), np.trace(a[:, :2, 0])


@program()
def convolution() -> Pairs:
    """Convolve images with strides and padding."""
    x, k = normal(2, 3, 7, 6), normal(4, 3, 3, 2, seed=1)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))[:, :, ::2]
    function = jax.jit(lambda x, k: lax.conv_general_dilated(x, k, (2, 1), ((1, 1), (0, 0))))
    yield function(x, k), np.einsum("nchwij,ocij->nohw", windows, k)


@program()
def pooling() -> Pairs:
    """Take the largest number of each window, and its gradient."""
    x = normal(8)

    def largest(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID")

    rows = x.reshape(4, 2)
    yield jax.jit(largest)(x), rows.max(1)
    wanted = (rows == rows.max(1, keepdims=True)).astype("float32").reshape(-1)
    yield jax.jit(jax.grad(lambda x: largest(x).sum()))(x), wanted


@program()
def cumulation() -> Pairs:
    """Accumulate sums, products, and maxima from the end."""
    x = normal(3, 8)
    yield jax.jit(lambda x: jnp.cumsum(x, axis=1))(x), np.cumsum(x, axis=1)
    yield jax.jit(lambda x: jnp.cumprod(x, axis=0))(x), np.cumprod(x, axis=0)
    yield (
        jax.jit(lambda x: lax.cummax(x, 1, True))(x),
        np.maximum.accumulate(x[:, ::-1], 1)[:, ::-1],
    )


@program()
def segment_sum() -> Pairs:
    """Sum by segments, of which one is empty."""
    x, ids = normal(7, 2), np.array([2, 0, 2, 3, 0, 0, 3])
    expected = np.zeros((4, 2), "float32")
    np.add.at(expected, ids, x)
    yield jax.jit(lambda x: jax.ops.segment_sum(x, ids, num_segments=4))(x), expected


@program()
def fft() -> Pairs:
    """Transform complex and real numbers, and back."""
    x = normal(4, 10)
    yield jax.jit(jnp.fft.fft)(x), np.fft.fft(x)
    yield jax.jit(jnp.fft.rfft2)(x), np.fft.rfft2(x)
    yield jax.jit(lambda x: jnp.fft.irfft(jnp.fft.rfft(x)))(x), x


@program()
def reductions() -> Pairs:
    """Reduce by logic, places, variance, and logarithms of sums."""
    x = normal(4, 6)
    yield jax.jit(lambda x: (x > 0).any(0))(x), (x > 0).any(0)
    yield jax.jit(lambda x: jnp.argmax(x, axis=1))(x), x.argmax(1)
    yield jax.jit(lambda x: jnp.var(x, axis=0))(x), x.var(0)
    yield jax.jit(jax.nn.logsumexp)(x * 50), np.logaddexp.reduce((x * 50).astype("float64").ravel())


@program()
def quantiles_and_search() -> Pairs:
    """Search a sorted array, count bins, and take medians."""
    x, bounds = normal(31), np.float32([-1, 0, 0.5, 2])
    yield jax.jit(jnp.searchsorted)(bounds, x), np.searchsorted(bounds, x)
    yield jax.jit(jnp.median)(x), np.median(x)
    counts = np.random.default_rng(0).integers(0, 5, 40)
    yield jax.jit(lambda n: jnp.bincount(n, length=6))(counts), np.bincount(counts, minlength=6)


@program(optional="linear algebra by custom calls")
def decompositions() -> Pairs:
    """Decompose matrices by Cholesky, QR, eigenvalues and singular values."""
    x = normal(5, 5)
    square = x @ x.T + 5 * np.eye(5, dtype="float32")
    yield jax.jit(jnp.linalg.cholesky)(square), np.linalg.cholesky(square)
    q, r = jax.jit(jnp.linalg.qr)(x)
    yield q @ r, x
    yield jax.jit(jnp.linalg.eigvalsh)(square), np.linalg.eigvalsh(square)
    singular = jax.jit(lambda x: jnp.linalg.svd(x, compute_uv=False))(x)
    yield singular, np.linalg.svd(x, compute_uv=False)


@program(optional="linear algebra by custom calls")
def solutions() -> Pairs:
    """Solve equations, and compute an inverse and a determinant."""
    a, b = normal(4, 4) + 4 * np.eye(4, dtype="float32"), normal(4, 2, seed=1)
    yield jax.jit(jnp.linalg.solve)(a, b), np.linalg.solve(a, b)
    yield jax.jit(jnp.linalg.inv)(a), np.linalg.inv(a)
    yield jax.jit(jnp.linalg.det)(a), np.linalg.det(a)
