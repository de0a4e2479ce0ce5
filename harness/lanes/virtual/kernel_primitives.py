"""Operations of Pallas kernels that JAX lowers for a TPU only, as JAX lowers them for the CPU here.

Each is what its documentation says: ``primitives`` and ``sc_primitives`` in
``jax._src.pallas.mosaic``, the latter for SparseCores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

Array = Any  # jax.Array, while JAX traces


@cache
def lower_for_a_cpu() -> None:
    """Register a lowering of each operation on values that this JAX has."""
    from jax.interpreters import mlir

    for primitive, meaning in _of_this_jax(_ON_VALUES).items():
        rule = mlir.lower_fun(meaning, multiple_results=primitive.multiple_results)
        mlir.register_lowering(primitive, rule, platform="cpu")


@cache
def on_references() -> Mapping[Any, Callable[..., Any]]:
    """Return a function of loads and stores for each operation on references of this JAX."""
    return _of_this_jax(_ON_REFERENCES)


def _of_this_jax(meanings: Mapping[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    from jax._src.pallas.mosaic import primitives

    modules = {"tc": primitives}
    with suppress(ImportError):  # JAX before 0.8 has no SparseCores
        from jax._src.pallas.mosaic import sc_primitives

        modules["sc"] = sc_primitives
    named = {
        f"{core}.{name}": primitive
        for core, module in modules.items()
        for name, primitive in vars(module).items()
    }
    return {named[name]: meaning for name, meaning in meanings.items() if name in named}


# --- Of values


def _pack(*arrays: Array, packed_dtype: Any) -> Array:
    """Return numbers with the bits of an element of each array, those of the first the lowest."""
    import jax.numpy as jnp
    from jax import lax

    wide = jnp.dtype(f"uint{arrays[0].dtype.itemsize * 8}")
    bits = wide.itemsize * 8 // len(arrays)
    packed = jnp.zeros(arrays[0].shape, wide)
    for position, array in enumerate(arrays):
        number = array
        if jnp.issubdtype(array.dtype, jnp.floating):
            number = lax.bitcast_convert_type(array.astype(packed_dtype), jnp.dtype(f"uint{bits}"))
        packed |= (number.astype(wide) & wide.type(2**bits - 1)) << wide.type(position * bits)
    return packed


def _unpack(packed: Array, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Array:
    """Return one of the elements that each number holds, extended by its sign if it has one."""
    import jax.numpy as jnp
    from jax import lax
    from jax._src import dtypes

    bits, width = dtypes.itemsize_bits(packed_dtype), packed.dtype.itemsize * 8
    wide = jnp.dtype(f"uint{width}")
    top = lax.bitcast_convert_type(packed, wide) << wide.type(width - (index + 1) * bits)
    if jnp.issubdtype(unpacked_dtype, jnp.floating):  # the upper half of a float32 is a bfloat16
        upper = top & wide.type((2**bits - 1) << (width - bits))
        return lax.bitcast_convert_type(upper, unpacked_dtype)
    if jnp.issubdtype(packed_dtype, jnp.signedinteger):
        signed = lax.bitcast_convert_type(top, jnp.dtype(f"int{width}"))
        return (signed >> (width - bits)).astype(unpacked_dtype)
    return (top >> wide.type(width - bits)).astype(unpacked_dtype)


def _round(x: Array, random_bits: Array, *, target_dtype: Any) -> Array:
    """Round up or down to a number of a smaller type, to the nearer one more often."""
    import jax.numpy as jnp

    nearest = x.astype(target_dtype)
    back, limits = nearest.astype(x.dtype), jnp.finfo(target_dtype)
    lower = jnp.where(back > x, jnp.nextafter(nearest, limits.min), nearest)
    upper = jnp.where(back < x, jnp.nextafter(nearest, limits.max), nearest)
    low, high = lower.astype(x.dtype), upper.astype(x.dtype)
    is_up = random_bits.astype(x.dtype) * 2.0**-32 * (high - low) < x - low
    return jnp.where(jnp.isfinite(x), jnp.where(is_up, upper, lower), nearest)


def _sort(keys: Array, values: Array, *masks: Array, descending: bool) -> tuple[Array, ...]:
    import jax.numpy as jnp

    a, b = keys[:, None], keys[None, :]
    earlier = jnp.arange(keys.size)[:, None] < jnp.arange(keys.size)
    before = (a > b if descending else a < b) | ((a == b) & earlier)
    for mask in masks:  # what it leaves out comes last, in the order in which it is
        a, b = mask[:, None], mask[None, :]
        before = jnp.where(a & b, before, jnp.where(a | b, a, earlier))
    order = jnp.argsort(before.sum(0))
    return tuple(array[order] for array in (keys, values, *masks))


def _running(over: str, initial: str) -> Callable[..., Any]:
    """Return a running reduction of what a mask has, that starts as ``initial`` of the dtype."""

    def meaning(x: Array, mask: Array) -> Array:
        import jax.numpy as jnp
        from jax import lax

        kind = jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo
        neutral = getattr(kind(x.dtype), initial) if initial else 0
        result = getattr(lax, over)(jnp.where(mask, x, jnp.asarray(neutral, x.dtype)))
        passes = jnp.cumsum(mask) == 0  # until the first that counts
        return jnp.where(passes, x, result) if initial else result

    return meaning


def _count(x: Array, mask: Array) -> tuple[Array, Array]:
    import jax.numpy as jnp

    same = (x[:, None] == x[None, :]) & mask[None, :]
    later = jnp.arange(x.size)[:, None] < jnp.arange(x.size)[None, :]
    counts = jnp.sum(same & ~later, axis=1, dtype=jnp.int32)
    return counts, mask & ~jnp.any(same & later, axis=1)


def _pack_pairs(a: Array, b: Array, *, format: Any, preferred_element_type: Any) -> Array:  # noqa: A002
    import jax.numpy as jnp

    halves = {"float32": "bfloat16", "int32": "int16"}
    dtype = preferred_element_type or halves[a.dtype.name]
    pairs = jnp.stack([a, b], axis=-1).astype(dtype)
    return pairs if format.value == "compressed" else pairs.reshape(-1)


def _unpack_pairs(
    ab: Array,
    *,
    format: Any,  # noqa: A002 - JAX's name
    preferred_element_type: Any,
) -> tuple[Array, Array]:
    del format
    wholes = {"bfloat16": "float32", "int16": "int32"}
    pairs = ab.reshape(-1, 2).astype(preferred_element_type or wholes[ab.dtype.name])
    return pairs[:, 0], pairs[:, 1]


def _everywhere(function: str) -> Callable[..., Any]:
    """Return a meaning that has the same number in each place of its result."""

    def meaning(x: Array, *, reduce: int) -> Array:
        import jax.numpy as jnp

        number = getattr(jnp, function)(x)
        if function == "argmax":
            number = jnp.where(jnp.any(x), number, x.size)
        return jnp.full((x.size // reduce,), number, jnp.int32)

    return meaning


def _bitcast(x: Array, *, dtype: Any) -> Array:
    from jax import lax

    ratio = dtype.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], -1, ratio)
    result = lax.bitcast_convert_type(x, dtype)
    return result.reshape(*x.shape[:-1], -1) if dtype.itemsize < x.dtype.itemsize else result


_ON_VALUES: dict[str, Callable[..., Any]] = {
    "tc.pack_elementwise_p": _pack,
    "tc.unpack_elementwise_p": _unpack,
    "tc.stochastic_round_p": _round,
    "sc.masked_sort_p": _sort,
    "sc.masked_cummax_p": _running("cummax", "min"),
    "sc.masked_cummin_p": _running("cummin", "max"),
    "sc.masked_cumsum_p": _running("cumsum", ""),
    "sc.scan_count_p": _count,
    "sc.pack_p": _pack_pairs,
    "sc.unpack_p": _unpack_pairs,
    "sc.all_reduce_population_count_p": _everywhere("sum"),
    "sc.all_reduce_ffs_p": _everywhere("argmax"),
    "sc.bitcast_p": _bitcast,
}


# --- Of references


def _part(reference: Any, transforms: Any) -> Any:
    from jax._src.state import types

    return types.TransformedRef(reference, tuple(transforms)) if transforms else reference


def _load_expanded(reference: Any, *rest: Any, has_mask: bool, tree: Any) -> Array:
    import jax.numpy as jnp

    transforms, masks = (rest[:-1], rest[-1:]) if has_mask else (rest, ())
    values = _part(reference, tree.unflatten(transforms))[...]
    for mask in masks:
        values = values.reshape(-1)[(jnp.cumsum(mask) - 1).reshape(mask.shape)]
    return values


def _store_compressed(
    reference: Any, x: Array, *rest: Any, has_mask: bool, tree: Any, **how: bool
) -> Array:
    """Store, or with ``add`` in ``how`` add, what a mask has: side by side or where it is.

    Until JAX 0.12, which says which with ``compress``, all that has a mask is side by side.
    """
    import jax.numpy as jnp

    transforms, mask = (rest[:-1], rest[-1]) if has_mask else (rest, jnp.ones(x.shape, bool))
    part = _part(reference, tree.unflatten(transforms))
    before = part[...]
    mask = mask.reshape(-1)
    places = jnp.cumsum(mask) - 1 if how.get("compress", True) else jnp.arange(x.size)
    places = jnp.where(mask, places, x.size)
    after = _written(before.reshape(-1), (places,), x.reshape(-1), add=how["add"])
    part[...] = after.reshape(x.shape)
    return before


def _gather(*flat: Any, tree: Any) -> Array:
    reference, transforms, indices, mask = tree.unflatten(flat)
    values = _part(reference, transforms)[...][tuple(indices)]
    return values if mask is None else values * mask.astype(values.dtype)


def _scatter(*flat: Any, tree: Any, add: bool) -> tuple[()]:
    import jax.numpy as jnp

    reference, transforms, indices, x, mask = tree.unflatten(flat)
    part = _part(reference, transforms)
    before = part[...]
    if mask is not None:
        indices = [jnp.where(mask, indices[0], before.shape[0]), *indices[1:]]
    part[...] = _written(before, tuple(indices), x, add=add)
    return ()


def _written(array: Array, places: tuple[Array, ...], x: Array, *, add: bool) -> Array:
    """Return the array with ``x`` in some places; those past its end are left out."""
    at = array.at[places]
    return at.add(x, mode="drop") if add else at.set(x, mode="drop")


def _loop(*flat: Any, jaxpr: Any, tree: Any, unroll: int) -> Any:
    """Run the iterations of a loop in their order, which a TPU may change."""
    import jax.numpy as jnp
    from jax import lax
    from jax._src import core

    del unroll
    lower, upper, step, constants, carry = tree.unflatten(flat)

    def body(n: Any, values: Any) -> Any:
        index = jnp.asarray(lower + n * step, jnp.int32)
        return core.eval_jaxpr(jaxpr, constants, index, *values)

    count = (upper - lower + step - 1) // step
    return lax.fori_loop(0, count, body, list(carry))


def list_of_rows(reference: Any) -> tuple[int, int] | None:
    """Return which transform of a reference, and which of its indices, is an array of rows."""
    places = (
        (n, k)
        for n, transform in enumerate(getattr(reference, "transforms", ()))
        for k, index in enumerate(getattr(transform, "indices", ()))
        if getattr(getattr(_rows(index), "aval", _rows(index)), "shape", ())
    )
    return next(places, None)


def _rows(index: Any) -> Any:
    """Return the array in an index of a SparseCore's (``plsc.Indices``), or any other index."""
    return getattr(index, "values", index)


def copy_rows(primitive: Any, *flat: Any, tree: Any, **parameters: Any) -> Sequence[Any]:
    """Start or wait for a copy of the rows that an array lists, seen through ``ListedRows``."""
    import jax.numpy as jnp
    from jax._src.pallas.mosaic import primitives
    from jax._src.state import indexing
    from jax._src.state.types import TransformedRef

    _register()
    source, target, *rest = tree.unflatten(flat)
    sides = [source, target]
    side = 0 if list_of_rows(source) else 1
    n, k = list_of_rows(sides[side]) or (0, 0)
    if k or any(list_of_rows(each) for each in [sides[1 - side]]):
        raise NotImplementedError(
            "a copy of places that an array lists, other than along the first axis of one side"
        )
    before, (index, *after) = sides[side].transforms[:n], sides[side].transforms[n:]
    listed, *others = index.indices
    rows, ignored = _rows(listed), getattr(listed, "ignored_value", None)
    size, starts = rows.shape[0], primitive is primitives.dma_start_p
    rows = rows[...] if starts else jnp.zeros(size, jnp.int32)  # a wait only counts
    is_kept = jnp.ones(size, bool) if ignored is None else rows != ignored
    within = indexing.NDIndexer((indexing.Slice(0, size), *others), (size, *index.shape[1:]), ())
    sides[side] = TransformedRef(
        sides[side].ref, (*before, ListedRows(rows, is_kept), within, *after)
    )
    if ignored is not None:  # the other side leaves out the same
        other = sides[1 - side]
        reference, transforms = getattr(other, "ref", other), getattr(other, "transforms", ())
        same = ListedRows(jnp.arange(size), is_kept)
        sides[1 - side] = TransformedRef(reference, (*transforms, same))
    operands, own = primitives._dma_flatten(*sides, *rest)
    primitive.bind(*operands, tree=own, **parameters)
    return ()


@dataclasses.dataclass(frozen=True, eq=False)
class ListedRows:
    """Transform of a reference: its rows that an array lists.

    Attributes:
        rows: their numbers.
        is_kept: for each of them, whether a copy reads and writes it; what is left out reads as 0.
    """

    rows: Array
    is_kept: Array

    def transform_type(self, aval: Any) -> Any:
        if hasattr(aval, "inner_aval"):
            return aval.update(inner_aval=self.transform_type(aval.inner_aval))
        return aval.update(shape=(*self.rows.shape, *aval.shape[1:]))

    def seen(self, array: Any) -> Any:
        """Return the rows of an array of NumPy's."""
        part = array[self._places(array)]
        part[~self.is_kept] = 0
        return part

    def undone(self, part: Any, array: Any) -> Any:
        """Return the array with the rows that ``part`` has of it."""
        array = array.copy()
        array[self._places(array)[self.is_kept]] = part[self.is_kept]
        return array

    def _places(self, array: Any) -> Any:
        import numpy as np

        places = np.where(self.is_kept, self.rows, 0)
        outside = places[(places < 0) | (places >= len(array))]
        if outside.size:
            raise IndexError(f"Out-of-bounds row {outside[0]} of a buffer with {len(array)} rows")
        return places


class ListedRowsHere(ListedRows):
    """The rows as NumPy's arrays, which no traversal of transforms reaches."""


class AddedTo:
    """Transform of a copy's target: what is copied is added to what is there, all at once.

    JAX's interpreter drops ``add`` of a copy.
    """

    def transform_type(self, aval: Any) -> Any:
        return aval


def adding(equation: Any) -> Any:
    """Return the equation of a copy that has ``AddedTo`` in the place of its ``add``."""
    from jax._src.pallas.mosaic import primitives
    from jax._src.state.types import TransformedRef

    _register()
    source, target, *rest = equation.params["tree"].unflatten(equation.invars)
    reference, transforms = getattr(target, "ref", target), getattr(target, "transforms", ())
    target = TransformedRef(reference, (*transforms, AddedTo()))
    operands, tree = primitives._dma_flatten(source, target, *rest)
    return equation.replace(
        invars=list(operands), params={**equation.params, "tree": tree, "add": False}
    )


@cache
def _register() -> None:
    import jax

    jax.tree_util.register_static(AddedTo)
    jax.tree_util.register_static(ListedRowsHere)
    jax.tree_util.register_dataclass(ListedRows, ["rows", "is_kept"], [])


_ON_REFERENCES: dict[str, Callable[..., Any]] = {
    "sc.load_p": _load_expanded,
    "sc.swap_p": _store_compressed,
    "sc.gather_p": _gather,
    "sc.scatter_p": _scatter,
    "sc.parallel_loop_p": _loop,
}
