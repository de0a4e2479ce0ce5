"""The operators of random programs: each is an expression of JAX, and what it means in NumPy.

The NumPy functions are written after https://openxla.org/stablehlo/spec and NumPy's own manual,
and share no code with JAX.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from harness.fuzz.draft import SIZES, Draft, DraftValue, numpy_type, spec_text
from harness.fuzz.per_device import per_device

Operator = Callable[[Draft], bool]  # returns whether it has added a statement


def _has_dimensions(value: DraftValue) -> bool:
    return value.array.ndim > 0


def _is_number(value: DraftValue) -> bool:
    return value.dtype != "bool"


def _is_array(value: DraftValue) -> bool:
    return _has_dimensions(value) and _is_number(value)


def _alike(value: DraftValue) -> Callable[[DraftValue], bool]:
    return lambda other: (other.shape, other.dtype) == (value.shape, value.dtype)


UNARY: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "-{0}": np.negative,
    "{0} * {0}": lambda x: x * x,
    "{0} + {0}": lambda x: x + x,
    "jnp.abs({0})": np.abs,
    "jnp.sign({0})": np.sign,
    "jnp.minimum({0}, 2)": lambda x: np.minimum(x, np.asarray(2, x.dtype)),
    "jnp.where({0} > 0, {0}, 0)": lambda x: np.where(x > 0, x, np.asarray(0, x.dtype)),
}
_SMOOTH_UNARY = ("-{0}", "{0} * {0}", "{0} + {0}")


def elementwise(draft: Draft) -> bool:
    """Compute something of each element alone."""
    if not (x := draft.value(_is_number)):
        return False
    text = draft.of([*UNARY])
    return draft.add(text, UNARY[text], x, feature="elementwise", smooth=text in _SMOOTH_UNARY)


BINARY: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "{0} + {1}": np.add,
    "{0} - {1}": np.subtract,
    "{0} * {1}": np.multiply,
    "jnp.maximum({0}, {1})": np.maximum,
    "jnp.where({0} > {1}, {1}, {0})": lambda x, y: np.where(x > y, y, x),
}
_SMOOTH_BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}")


def binary(draft: Draft) -> bool:
    """Combine two values of one shape."""
    if not (x := draft.value(_is_number)):
        return False
    y, text = draft.value(_alike(x)), draft.of([*BINARY])
    return draft.add(text, BINARY[text], x, y or x, feature="binary", smooth=text in _SMOOTH_BINARY)


def compare(draft: Draft) -> bool:
    """Compare two values, and use the answer in a third place."""
    if not (x := draft.value(_is_number)):
        return False
    y = draft.value(_alike(x)) or x
    return draft.add(
        "({0} < {1}).astype({0}.dtype)",
        lambda x, y: (x < y).astype(x.dtype),
        x,
        y,
        feature="compare",
    )


def convert(draft: Draft) -> bool:
    """Give a value another type."""
    if not (x := draft.value(_is_number)):
        return False
    dtype = draft.of(["float32", "int32", "bfloat16", "int8", "float16"])
    if dtype.startswith(("int", "uint")) and np.abs(x.array.astype(np.float64)).max() > 100:
        return False  # what a conversion out of range gives is not defined

    text = f"{{0}}.astype(jnp.{dtype})"
    return draft.add(text, lambda x: x.astype(numpy_type(dtype)), x, feature="convert")


def reshape(draft: Draft) -> bool:
    """Give a value another shape with as many elements."""
    if not (x := draft.value(_is_array)):
        return False
    size = x.array.size
    shapes: list[tuple[int, ...]] = [(size,)]
    shapes += [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    shapes += [
        (a, b, size // a // b)
        for a, b in itertools.product((1, 2, 3, 4), repeat=2)
        if size % (a * b) == 0
    ]
    shape = draft.of(shapes)
    return draft.add(
        f"{{0}}.reshape({shape})", lambda x: x.reshape(shape), x, feature="reshape", smooth=True
    )


def transpose(draft: Draft) -> bool:
    """Exchange dimensions."""
    if not (x := draft.value(lambda x: x.array.ndim > 1)):
        return False
    order = draft.of([*itertools.permutations(range(x.array.ndim))][::-1])
    return draft.add(
        f"{{0}}.transpose({order})",
        lambda x: x.transpose(order),
        x,
        feature="transpose",
        smooth=True,
    )


def flip(draft: Draft) -> bool:
    """Reverse a dimension."""
    if not (x := draft.value(_has_dimensions)):
        return False
    axis = draft.axis(x)
    return draft.add(
        f"jnp.flip({{0}}, {axis})", lambda x: np.flip(x, axis), x, feature="flip", smooth=True
    )


def broadcast(draft: Draft) -> bool:
    """Repeat a value along a new dimension."""
    if not (x := draft.value(lambda x: x.array.ndim < 3)):
        return False
    shape = (draft.of(SIZES), *x.shape)
    return draft.add(
        f"jnp.broadcast_to({{0}}, {shape})",
        lambda x: np.broadcast_to(x, shape),
        x,
        feature="broadcast",
        smooth=True,
    )


def slice_(draft: Draft) -> bool:
    """Take every n-th element between two places of each dimension."""
    if not (x := draft.value(_has_dimensions)):
        return False
    bounds = []
    for size in x.shape:
        start = draft.within(0, size - 1)
        stop = size - draft.within(0, size - 1 - start)
        bounds.append((start, stop, draft.of((1, 2, 3))))
    starts, stops, steps = (tuple(each) for each in zip(*bounds, strict=True))
    place = tuple(slice(*each) for each in bounds)
    return draft.add(
        f"lax.slice({{0}}, {starts}, {stops}, {steps})",
        lambda x: x[place],
        x,
        feature="slice",
        smooth=True,
    )


def pad(draft: Draft) -> bool:
    """Pad a value, also by less than nothing, and between its elements."""
    if not (x := draft.value(_is_array)):
        return False
    widths = []
    for size in x.shape:
        inside = draft.of((0, 0, 1, 2))
        whole = size + max(size - 1, 0) * inside
        low = draft.within(-min(whole - 1, 4), 3)
        high = draft.within(-min(whole - 1 + min(low, 0), 4), 3)
        widths.append((low, high, inside))
    filled = draft.of((0, 1))

    def padded(x: np.ndarray) -> np.ndarray:
        for axis, (low, high, inside) in enumerate(widths):
            shape = list(x.shape)
            shape[axis] += (shape[axis] - 1) * inside
            wide = np.full(shape, filled, x.dtype)
            np.moveaxis(wide, axis, 0)[:: inside + 1] = np.moveaxis(x, axis, 0)
            wide = np.take(wide, range(max(-low, 0), shape[axis] - max(-high, 0)), axis)
            edges = [(0, 0)] * x.ndim
            edges[axis] = (max(low, 0), max(high, 0))
            x = np.pad(wide, edges, constant_values=filled)
        return x

    return draft.add(
        f"lax.pad({{0}}, np.array({filled}, {{0}}.dtype), {widths})",
        padded,
        x,
        feature="pad",
        smooth=True,
    )


def concatenate(draft: Draft) -> bool:
    """Put two or three values behind each other."""
    if not (x := draft.value(_has_dimensions)):
        return False
    axis = draft.axis(x)

    def fits(y: DraftValue) -> bool:
        shapes = [[s for n, s in enumerate(v.shape) if n != axis] for v in (x, y)]
        return y.dtype == x.dtype and y.array.ndim == x.array.ndim and shapes[0] == shapes[1]

    parts = [x, *(draft.value(fits) or x for _ in range(draft.within(1, 2)))]
    if draft.coin():
        parts.reverse()
    names = ", ".join(f"{{{n}}}" for n in range(len(parts)))
    return draft.add(
        f"jnp.concatenate([{names}], {axis})",
        lambda *parts: np.concatenate(parts, axis),
        *parts,
        feature="concatenate",
        smooth=True,
    )


def roll(draft: Draft) -> bool:
    """Move a dimension's elements around its end."""
    if not (x := draft.value(_has_dimensions)):
        return False
    axis, shift = draft.axis(x), draft.within(-3, 3)
    return draft.add(
        f"jnp.roll({{0}}, {shift}, {axis})",
        lambda x: np.roll(x, shift, axis),
        x,
        feature="roll",
        smooth=True,
    )


def _starts(draft: Draft, x: DraftValue, sizes: tuple[int, ...]) -> tuple[DraftValue, str]:
    """Return an argument of starts, some out of bounds, and what is unusual about them."""
    starts = np.array(
        [draft.within(-1, n + 1) for n in x.shape] if draft.coin() else [0] * x.array.ndim
    )
    room = np.array(x.shape) - sizes
    unusual = ".late" if (starts > room).any() else ".early" if (starts < 0).any() else ""
    return draft.index(starts), unusual


def _clamped(x: np.ndarray, sizes: tuple[int, ...], starts: np.ndarray) -> tuple[slice, ...]:
    """Return the place of a slice: XLA moves one that leaves the array back into it.

    JAX counts a negative start from the end first, as NumPy does.
    """
    places = []
    for size, whole, start in zip(sizes, x.shape, starts.tolist(), strict=True):
        start = start + whole if start < 0 else start  # noqa: PLW2901
        low = min(max(start, 0), whole - size)
        places.append(slice(low, low + size))
    return tuple(places)


def dynamic_slice(draft: Draft) -> bool:
    """Take a part whose start is an argument."""
    if not (x := draft.value(_has_dimensions)):
        return False
    sizes = tuple(draft.within(1, size) for size in x.shape)
    starts, unusual = _starts(draft, x, sizes)
    return draft.add(
        f"lax.dynamic_slice({{0}}, list({{1}}), {sizes})",
        lambda x, starts: x[_clamped(x, sizes, starts)],
        x,
        starts,
        feature=f"dynamic_slice{unusual}",
        smooth=True,
    )


def dynamic_update(draft: Draft) -> bool:
    """Put a value into another one at a place that is an argument."""
    if not (x := draft.value(_has_dimensions)):
        return False

    def fits(y: DraftValue) -> bool:
        is_alike = y.dtype == x.dtype and y.array.ndim == x.array.ndim
        return is_alike and all(a <= b for a, b in zip(y.shape, x.shape, strict=True))

    y = draft.value(fits) or x
    starts, unusual = _starts(draft, x, y.shape)

    def updated(x: np.ndarray, y: np.ndarray, starts: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[_clamped(x, y.shape, starts)] = y
        return x

    return draft.add(
        "lax.dynamic_update_slice({0}, {1}, list({2}))",
        updated,
        x,
        y,
        starts,
        feature=f"dynamic_update{unusual}",
        smooth=True,
    )


def _indices(draft: Draft, count: int, size: int) -> DraftValue:
    """Return an argument of indices below a size, which axes may divide."""
    indices = np.array([draft.within(0, size - 1) for _ in range(count)])
    return draft.index(indices, draft.spec(indices.shape, even=True))


def take(draft: Draft) -> bool:
    """Take elements at indices that are an argument."""
    if not (x := draft.value(_has_dimensions)):
        return False
    axis = draft.axis(x)
    return draft.add(
        f'jnp.take({{0}}, {{1}}, {axis}, mode="clip")',
        lambda x, indices: np.take(x, indices, axis),
        x,
        _indices(draft, draft.of(SIZES[:5]), x.shape[axis]),
        feature="take",
        smooth=True,
    )


def scatter(draft: Draft) -> bool:
    """Add rows of a value to another one's rows at indices that are an argument."""
    if not (x := draft.value(_is_array)):
        return False

    def fits(y: DraftValue) -> bool:
        return y.dtype == x.dtype and y.shape[1:] == x.shape[1:] and y.array.ndim > 0

    y = draft.value(fits) or x
    rows = _indices(draft, y.shape[0], x.shape[0])
    text, numpy = draft.of([("add", np.add), ("max", np.maximum), ("min", np.minimum)])

    def scattered(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        x = x.copy()
        for row, each in zip(rows.tolist(), y, strict=True):
            x[row] = numpy(x[row], each)
        return x

    return draft.add(
        f"{{0}}.at[{{2}}].{text}({{1}})",
        scattered,
        x,
        y,
        rows,
        feature="scatter",
        smooth=text == "add",
    )


REDUCTIONS: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "jnp.sum({{0}}, {0}, dtype={{0}}.dtype)": lambda x, axis: x.sum(axis, dtype=x.dtype),
    "jnp.max({{0}}, {0})": lambda x, axis: x.max(axis),
    "jnp.min({{0}}, {0})": lambda x, axis: x.min(axis),
    "jnp.argmax({{0}}, {0}).astype({{0}}.dtype)": lambda x, axis: x.argmax(axis).astype(x.dtype),
    "jnp.argmin({{0}}, {0}).astype({{0}}.dtype)": lambda x, axis: x.argmin(axis).astype(x.dtype),
}


def reduce(draft: Draft) -> bool:
    """Reduce one dimension."""
    if not (x := draft.value(_is_array)):
        return False
    axis, text = draft.axis(x), draft.of([*REDUCTIONS])
    return draft.add(
        text.format(axis),
        lambda x: REDUCTIONS[text](x, axis),
        x,
        feature="arg_reduce" if "arg" in text else "reduce",
        smooth="sum" in text,
    )


CUMULATIVE: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "cumsum": lambda x, axis: np.cumsum(x, axis, dtype=x.dtype),
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
}


def cumulative(draft: Draft) -> bool:
    """Reduce what is before each element."""
    if not (x := draft.value(_is_array)):
        return False
    axis, name, is_reverse = draft.axis(x), draft.of([*CUMULATIVE]), draft.coin()

    def computed(x: np.ndarray) -> np.ndarray:
        x = np.flip(x, axis) if is_reverse else x
        x = CUMULATIVE[name](x, axis)
        return np.flip(x, axis) if is_reverse else x

    return draft.add(
        f"lax.{name}({{0}}, {axis}, reverse={is_reverse})",
        computed,
        x,
        feature="cumulative",
        smooth=name == "cumsum",
    )


def sort(draft: Draft) -> bool:
    """Sort along a dimension."""
    if not (x := draft.value(_is_array)):
        return False
    axis = draft.axis(x)
    return draft.add(f"jnp.sort({{0}}, {axis})", lambda x: np.sort(x, axis), x, feature="sort")


def window(draft: Draft) -> bool:
    """Reduce a window around each place of one dimension."""
    if not (x := draft.value(_is_array)):
        return False
    axis = draft.axis(x)
    size, step = draft.of((2, 3)), draft.of((1, 2))
    low, high = draft.within(0, 2), draft.within(0, 2)
    if x.shape[axis] + low + high < size:
        return False
    sizes, steps, padding = [1] * x.array.ndim, [1] * x.array.ndim, [(0, 0)] * x.array.ndim
    sizes[axis], steps[axis], padding[axis] = size, step, (low, high)

    def computed(x: np.ndarray) -> np.ndarray:
        wide = np.pad(x, padding)
        windows = np.lib.stride_tricks.sliding_window_view(wide, size, axis)
        own = windows.sum(-1, dtype=x.dtype)
        return np.moveaxis(np.moveaxis(own, axis, 0)[::step], 0, axis)

    return draft.add(
        f"lax.reduce_window({{0}}, np.array(0, {{0}}.dtype), lax.add, {tuple(sizes)}, "
        f"{tuple(steps)}, {padding})",
        computed,
        x,
        feature="window",
        smooth=True,
    )


def dot(draft: Draft) -> bool:
    """Contract one dimension of each of two values."""
    if not (x := draft.value(_is_array)):
        return False
    axis = draft.axis(x)

    def fits(y: DraftValue) -> bool:
        return y.dtype == x.dtype and x.shape[axis] in y.shape

    y = draft.value(fits) or x
    other = draft.of([n for n, size in enumerate(y.shape) if size == x.shape[axis]])
    if x.array.ndim + y.array.ndim > 5:
        return False
    return draft.add(
        f"jnp.tensordot({{0}}, {{1}}, ({axis}, {other}))",
        lambda x, y: _tensordot(x, y, axis, other),
        x,
        y,
        feature="dot",
        smooth=True,
    )


def _tensordot(x: np.ndarray, y: np.ndarray, axis: int, other: int) -> np.ndarray:
    product: np.ndarray = np.tensordot(_wide(x), _wide(y), (axis, other)).astype(x.dtype)
    return product


def _wide(x: np.ndarray) -> np.ndarray:
    """Return the values in a type in which sums of them are not rounded."""
    return x.astype(np.int64 if x.dtype.kind in "iu" else np.float64)


def batched_dot(draft: Draft) -> bool:
    """Multiply the matrices of two batches."""
    if not (x := draft.value(lambda x: x.array.ndim == 3 and _is_number(x))):
        return False
    y = draft.value(_alike(x)) or x
    text = draft.of(["bij,bkj->bik", "bij,bij->b", "bij,bij->bj", "bij,bij->ij"])

    def computed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        product: np.ndarray = np.einsum(text, _wide(x), _wide(y)).astype(x.dtype)
        return product

    return draft.add(
        f'jnp.einsum("{text}", {{0}}, {{1}})', computed, x, y, feature="batched_dot", smooth=True
    )


def iota(draft: Draft) -> bool:
    """Count along a dimension of a value, and add that to it."""
    if not (x := draft.value(_is_array)):
        return False
    axis = draft.axis(x)

    def computed(x: np.ndarray) -> np.ndarray:
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        numbers: np.ndarray = x + np.arange(x.shape[axis]).astype(x.dtype).reshape(shape)
        return numbers

    return draft.add(
        f"{{0}} + lax.broadcasted_iota({{0}}.dtype, {x.shape}, {axis})",
        computed,
        x,
        feature="iota",
        smooth=True,
    )


def constraint(draft: Draft) -> bool:
    """Say how a value is divided, also into parts of different sizes."""
    if not (x := draft.value(_has_dimensions)):
        return False
    spec = draft.spec(x.shape, even=draft.is_explicit)
    is_even = all(n % draft.mesh.number(axes) == 0 for n, axes in zip(x.shape, spec, strict=True))
    name = "jax.sharding.reshard" if draft.is_explicit else "lax.with_sharding_constraint"
    return draft.add(
        f"{name}({{0}}, NamedSharding(mesh, {spec_text(spec)}))",
        lambda x: x,
        x,
        feature="constraint" if is_even else "constraint.uneven",
        smooth=True,
    )


_BODIES: Mapping[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "(c + row, c)": lambda c, row: (c + row, c),
    "(row, c + row)": lambda c, row: (row, c + row),
    "(jnp.flip(c, 0) - row, c * row)": lambda c, row: (np.flip(c, 0) - row, c * row),
    "(jnp.roll(c, 1, 0) + row, row)": lambda c, row: (np.roll(c, 1, 0) + row, row),
}


def scan(draft: Draft) -> bool:
    """Go along the rows of a value with a state."""
    if not (x := draft.value(lambda x: _is_array(x) and x.array.ndim > 1)):
        return False
    text, is_last = draft.of([*_BODIES]), draft.coin()

    def scanned(x: np.ndarray) -> np.ndarray:
        state, rows = np.zeros_like(x[0]), []
        for row in x:
            state, own = _BODIES[text](state, row)
            rows.append(own)
        return state if is_last else np.stack(rows)

    return draft.add(
        f"lax.scan(lambda c, row: {text}, jnp.zeros_like({{0}}[0]), {{0}})[{int(not is_last)}]",
        scanned,
        x,
        feature="scan",
        smooth=True,
    )


def loop(draft: Draft) -> bool:
    """Change one row after the other, each with the one before it."""
    if not (x := draft.value(_is_array)):
        return False

    def computed(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        for i in range(len(x) - 1):
            x[i + 1] = x[i + 1] - x[i]
        return x

    return draft.add(
        f"lax.fori_loop(0, {x.shape[0] - 1}, lambda i, c: c.at[i + 1].add(-c[i]), {{0}})",
        computed,
        x,
        feature="loop",
        smooth=True,
    )


def branch(draft: Draft) -> bool:
    """Compute one of two things, as an argument says."""
    if not (x := draft.value(_has_dimensions)):
        return False
    axis, number = draft.axis(x), draft.index(np.array(draft.within(0, 1)))
    branches = f"lambda x: jnp.flip(x, {axis}), lambda x: jnp.roll(x, 1, {axis})"
    return draft.add(
        f"lax.cond({{1}} > 0, {branches}, {{0}})",
        lambda x, number: np.flip(x, axis) if number > 0 else np.roll(x, 1, axis),
        x,
        number,
        feature="branch",
        smooth=True,
    )


OPERATORS: Mapping[str, Operator] = {
    "binary": binary,
    "elementwise": elementwise,
    "constraint": constraint,
    "slice": slice_,
    "concatenate": concatenate,
    "pad": pad,
    "reshape": reshape,
    "transpose": transpose,
    "flip": flip,
    "roll": roll,
    "broadcast": broadcast,
    "reduce": reduce,
    "cumulative": cumulative,
    "dot": dot,
    "batched_dot": batched_dot,
    "dynamic_slice": dynamic_slice,
    "dynamic_update": dynamic_update,
    "take": take,
    "scatter": scatter,
    "sort": sort,
    "window": window,
    "iota": iota,
    "compare": compare,
    "convert": convert,
    "scan": scan,
    "loop": loop,
    "branch": branch,
    "per_device": per_device,
}
