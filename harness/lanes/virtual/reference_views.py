"""Loads and stores through views of a kernel's references, which JAX's TPU interpret mode lacks.

A kernel may look at a part of its memory in another shape or dtype, as ragged paged attention does,
and load or store some of that. The interpreter knows only indices, so such a part is loaded whole,
looked at here, and for a store written back whole. So is a masked store, whose bounds JAX checks
along the first axis alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from harness.lanes.virtual import kernel_calls
from harness.lanes.virtual.kernel_primitives import ListedRows, ListedRowsHere
from harness.lanes.virtual.kernel_semaphores import counts_of

# JAX's functions by which a kernel loads, stores and copies
_LOADS, _STORES, _COPIES = "get", "swap", "dma_start"


def called(function: Any, *flat: Any) -> Any:
    """Call what JAX has given to ``io_callback``: the ``_FlatCallback`` of a function and its tree.

    Raises:
        NotImplementedError: a view of a kind that is not known here.
    """
    import jax

    name = name_of(function.callback_func)
    if name not in {_LOADS, _STORES, _COPIES}:
        return function(*flat)
    arguments, _ = jax.tree.unflatten(function.in_tree, flat)
    if name == _COPIES:  # takes single numbers in its transforms, and no arrays
        arguments = jax.tree.map(_here, arguments, is_leaf=lambda each: type(each) is ListedRows)
        return function.callback_func(*arguments)
    return _through_views(function.callback_func, arguments)


def _here(value: Any) -> Any:
    return ListedRowsHere(value.rows, value.is_kept) if type(value) is ListedRows else value


def _through_views(python: Any, arguments: Sequence[Any]) -> Any:
    """Call JAX's function that loads or stores, with the arguments of the callback."""
    at = _parameters(python).index("transforms")
    before, transforms, operands = arguments[:at], arguments[at], arguments[at + 1 :]
    if kernel_calls.is_python(before[-1]):
        memory = _names(python)["_get_shared_memory"]()
        return [*before[:-4], kernel_calls.answer(memory, before[-4:-2], transforms)]
    if "semaphore" in _names(python)["TPU_MEMORY_SPACE_NAMES"][int(before[-2])]:
        return [*before[:-4], _count(_names(python), before[-4:], transforms)]
    first = first_view(transforms)
    masked = name_of(python) == _STORES and operands[1] is not None
    if first == len(transforms) and not masked:
        return python(*arguments)
    views = transforms[first:]
    *token, value = _several(_other(python, _LOADS)(*before, transforms[:first]))
    if name_of(python) == _LOADS:
        return [*token, look(value, views)]
    whole, old = changed(value, views, *operands)
    *token, _ = _several(python(*token, *before[len(token) :], transforms[:first], whole, None))
    return [*token, old]


def _parameters(function: Any) -> Sequence[str]:
    inner = function.func if isinstance(function, functools.partial) else function
    return list(inspect.signature(inner).parameters)


def name_of(function: Any) -> str:
    """Return the name of JAX's function that a callback calls; "" if it has none."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", ""))


def _other(function: Any, name: str) -> Callable[..., Any]:
    """JAX's function of that name, with the keywords that ``function`` is called with."""
    keywords = function.keywords if isinstance(function, functools.partial) else {}
    other: Callable[..., Any] = functools.partial(_names(function)[name], **keywords)
    return other


def _names(function: Any) -> dict[str, Any]:
    """Return the names in JAX's module that has a function."""
    inner = function.func if isinstance(function, functools.partial) else function
    names: dict[str, Any] = inspect.unwrap(inner).__globals__
    return names


def _count(module: dict[str, Any], place: Sequence[Any], transforms: Sequence[Any]) -> Any:
    """Return how often a semaphore has been signalled.

    Args:
        module: the names in JAX's.
        place: its device, its core, a memory space, and the numbers of an array of semaphores.
        transforms: which of the array.
    """
    import numpy as np

    device, core, _, numbers = place
    memory = module["_get_shared_memory"]()
    counts = counts_of(memory.sem[int(look(np.asarray(numbers), transforms))])
    return np.int32(counts[int(device) * memory.num_cores_per_device + int(core)])


def _several(results: Any) -> Sequence[Any]:
    """Since JAX 0.10 there is a token before the result."""
    return results if isinstance(results, tuple) else (results,)


def first_view(transforms: Sequence[Any]) -> int:
    """Return the position of the first transform that is no index, or their number."""
    views = (n for n, transform in enumerate(transforms) if not is_index(transform))
    return next(views, len(transforms))


def is_index(transform: Any) -> bool:
    """Return whether a transform of a reference is an index, the only kind that JAX interprets."""
    return hasattr(transform, "indices")


def look(array: Any, views: Sequence[Any]) -> Any:
    """Return what the views show of ``array``."""
    for view in views:
        array = array[_range(view)] if is_index(view) else _seen(array, view)
    return array


def changed(array: Any, views: Sequence[Any], value: Any, mask: Any) -> tuple[Any, Any]:
    """Return ``array`` with ``value`` where the views and ``mask`` show it, and what was there."""
    import numpy as np

    if not views:
        kept = value if mask is None else np.where(mask, value, array)
        return kept, array if mask is None else np.where(mask, array, value)
    view, *others = views
    if is_index(view):
        part, old = changed(array[_range(view)], others, value, mask)
        array = array.copy()
        array[_range(view)] = part
        return array, old
    inner, old = changed(_seen(array, view), others, value, mask)
    return _seen(inner, view, of=array), old


def _range(index: Any) -> tuple[Any, ...]:
    """Return an index as NumPy writes it; a kernel's own slice has a start, a size and a stride."""
    return tuple(
        slice(
            int(index_.start),
            int(index_.start) + int(index_.size) * int(index_.stride),
            int(index_.stride),
        )
        if hasattr(index_, "size") and hasattr(index_, "stride")
        else int(index_)
        for index_ in index.indices
    )


def _seen(array: Any, view: Any, of: Any = None) -> Any:
    """Return a view that is no index of an array; ``of`` is the array for which it is undone."""
    import numpy as np

    if isinstance(view, ListedRows):
        return view.seen(array) if of is None else view.undone(array, of)
    if (order := getattr(view, "permutation", None)) is not None:
        return array.transpose(order if of is None else np.argsort(order))
    shape = getattr(view, "shape", None)
    dtype = getattr(view, "dtype", array.dtype)
    if of is not None:
        shape, dtype = of.shape, of.dtype
    if dtype != array.dtype:
        return _bitcast(array, dtype)
    if shape is None:
        raise NotImplementedError(f"{type(view).__name__} of a reference in TPU interpret mode")
    return array.reshape(shape)


_NIBBLES = {"int4", "uint4"}  # which NumPy keeps in a byte each


def _bitcast(array: Any, dtype: Any) -> Any:
    """Combine the bits of neighbouring rows into one row, the first row in the low bits."""
    import numpy as np

    dtype = np.dtype(dtype)
    *outer, rows, columns = array.shape
    if dtype.name in _NIBBLES:
        whole = _bitcast(array, np.uint8) if array.dtype.itemsize > 1 else array.view(np.uint8)
        halves = np.stack([whole & 15, whole >> 4], -2).reshape(*outer, -1, columns)
        signed = (halves ^ 8).astype(np.int8) - 8
        return (signed if dtype.name == "int4" else halves).astype(dtype)
    if array.dtype.name in _NIBBLES:
        halves = array.astype(np.uint8).reshape(*outer, rows // 2, 2, columns) & 15
        return _bitcast(halves[..., 0, :] | halves[..., 1, :] << 4, dtype)
    if dtype.itemsize >= array.dtype.itemsize:
        ratio = dtype.itemsize // array.dtype.itemsize
        grouped = array.reshape(*outer, rows // ratio, ratio, columns)
        ordered = np.ascontiguousarray(np.moveaxis(grouped, -2, -1))
        return ordered.view(dtype)[..., 0]
    ratio = array.dtype.itemsize // dtype.itemsize
    split = np.ascontiguousarray(array)[..., None].view(dtype)
    return np.moveaxis(split, -1, -2).reshape(*outer, rows * ratio, columns)
