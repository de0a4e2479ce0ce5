"""Copies from and to views of a kernel's references, which JAX's TPU interpret mode lacks.

A copy holds the transforms of its references until a semaphore is waited for, and then calls the
interpreter's ``get`` and ``store``, which know only indices. Here these look through views too. A
view must show the indexed part whole, so that a copy touches exactly what it names: other copies
may write the rest at the same time, and would seem to race with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.lanes.virtual import reference_views

_KINDS = ("bitcast", "reshape")  # in the names of their classes, which differ among JAX's releases


def refused(references: Any) -> str:
    """Return why a copy cannot be interpreted, as a sentence; "" if it can.

    Args:
        references: its source and target, a pytree with their transforms.
    """
    for transforms in _chains(references):
        shown = transforms[reference_views.first_view(transforms) :]
        if unknown := [type(view).__name__ for view in shown if not _is_known(view)]:
            kinds = f"looks at a reference through {', '.join(unknown)}"
            return f"a copy in a kernel {kinds}, which is not interpreted"
        if any(reference_views.is_index(view) and not _is_whole(view) for view in shown):
            return (
                "a copy in a kernel indexes a reference that is reshaped or bitcast, "
                "which is not interpreted: index the reference first, and then reshape or bitcast"
            )
    return ""


def _chains(tree: Any) -> Iterator[Sequence[Any]]:
    """Yield the transforms of each reference: tuples, alone or in a ``TransformedRef``."""
    if hasattr(tree, "transforms"):
        yield from _chains(tree.transforms)
        yield from _chains(tree.ref)
    elif isinstance(tree, (tuple, list)):
        if tree and all(map(_is_transform, tree)):
            yield tree
        else:
            for part in tree:
                yield from _chains(part)


def _is_transform(value: Any) -> bool:
    return hasattr(value, "transform_type") or hasattr(value, "transform_shape")


def _is_whole(index: Any) -> bool:
    """Return whether an index shows everything, as ``at[...]`` does."""
    return all(
        hasattr(part, "stride")
        and isinstance(part.start, int)
        and (part.start, part.size, part.stride) == (0, size, 1)
        for part, size in zip(index.indices, index.shape, strict=True)
    )


def _is_known(view: Any) -> bool:
    name = type(view).__name__.lower()
    return reference_views.is_index(view) or any(kind in name for kind in _KINDS)


def interpret(interpreter: Any) -> None:
    """Have the module's copies look through views; calling it again changes nothing.

    Args:
        interpreter: JAX's module that holds the simulated memory.
    """
    for name, through in (("get", _get), ("store", _store)):
        function = getattr(interpreter, name)
        if getattr(function, "looks_through_views", False):
            continue
        known = _looking(function, through)
        if hasattr(function, "__wrapped__"):  # since JAX 0.9 a copy calls that
            known.__wrapped__ = _looking(function.__wrapped__, through)  # type: ignore[attr-defined]
        setattr(interpreter, name, known)


def _looking(function: Callable[..., Any], through: Callable[..., Any]) -> Callable[..., Any]:
    at = list(inspect.signature(function).parameters).index("transforms")

    @functools.wraps(function)
    def known(*arguments: Any, **options: Any) -> Any:
        first = reference_views.first_view(arguments[at])
        if first == len(arguments[at]):
            return function(*arguments, **options)
        return through(functools.partial(function, **options), arguments, at, first)

    known.looks_through_views = True  # type: ignore[attr-defined]
    return known


def _get(get: Callable[..., Any], arguments: Sequence[Any], at: int, first: int) -> Any:
    indices, shown = arguments[at][:first], arguments[at][first:]
    result = get(*arguments[:at], indices, *arguments[at + 1 :])
    if isinstance(result, tuple):  # since JAX 0.10 there is a token before the array
        return result[0], reference_views.look(result[1], shown)
    return reference_views.look(result, shown)


def _store(store: Callable[..., Any], arguments: Sequence[Any], at: int, first: int) -> Any:
    import numpy as np

    indices, shown = arguments[at][:first], arguments[at][first:]
    value, *rest = arguments[at + 1 :]
    shape, dtype = _buffer(store, *arguments[at - 4 : at])
    if indices:
        shape = indices[-1].get_indexer_shape()
    whole, _ = reference_views.changed(np.zeros(shape, dtype), shown, value, None)
    return store(*arguments[:at], indices, whole, *rest)


def _buffer(function: Any, device: Any, _core: Any, space: Any, number: Any) -> tuple[Any, Any]:
    """Return the shape and the dtype of a simulated buffer, which are the same on every core."""
    module = inspect.unwrap(function.func).__globals__
    key = module["TPU_MEMORY_SPACE_NAMES"][int(space)], int(number), int(device)
    memory = module["_get_shared_memory"]().mem
    buffer = next(kept for place, kept in list(memory.items()) if place[:3] == key)
    return buffer.shape, buffer.dtype
