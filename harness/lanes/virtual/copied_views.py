"""Copies from and to views of a kernel's references, which JAX's TPU interpret mode lacks.

A copy holds the transforms of its references until a semaphore is waited for, and then calls the
interpreter's ``get`` and ``store``, which know only indices. Here these look through views too, and
touch exactly what a copy names: other copies may write the rest at the same time, and would seem to
race with it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from harness.lanes.virtual import reference_views
from harness.lanes.virtual.kernel_primitives import AddedTo, ListedRows

_KINDS = ("bitcast", "reshape", "transpose")  # in the names of their classes
_adding = threading.Lock()


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


def _is_known(view: Any) -> bool:
    name = type(view).__name__.lower()
    if isinstance(view, AddedTo | ListedRows):
        return True
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
    part = _Part(get, arguments, at, first)
    values = part.read(get, part.boxes(part.touched))
    result = reference_views.look(values, part.shown)
    has_tokens = "token" in inspect.signature(get).parameters  # since JAX 0.10
    return (arguments[0], result) if has_tokens else result


def _store(store: Any, arguments: Sequence[Any], at: int, first: int) -> Any:
    *transforms, last = arguments[at]
    if isinstance(last, AddedTo):
        with _adding:  # a read in the order of copies would be one that races with the store
            added = _sum(_interpreted(store), arguments[at - 4 : at], transforms, arguments[at + 1])
            known = _interpreted(store)["store"].__wrapped__
            place = (*arguments[:at], tuple(transforms), added)
            return known(*place, *arguments[at + 2 :], **store.keywords)
    part = _Part(store, arguments, at, first)
    value, *rest = arguments[at + 1 :]
    get = _interpreted(store)["get"]
    get = functools.partial(inspect.unwrap(get), **store.keywords)
    before = part.read(get, part.boxes(part.touched & ~part.covered))
    values, _ = reference_views.changed(before, part.shown, value, None)
    answer = None
    for box in part.boxes(part.touched):
        answer = store(*part.before, part.transforms(box), values[box], *rest)
    return answer


class _Part:
    """The part of a buffer that a copy sees through views, and what it touches of that."""

    def __init__(self, function: Any, arguments: Sequence[Any], at: int, first: int) -> None:
        import numpy as np

        self.before, self._after = arguments[:at], arguments[at + 1 :]
        self._indices, self.shown = arguments[at][:first], arguments[at][first:]
        shape, self._dtype = _buffer(function, *arguments[at - 4 : at])
        self._shape = self._indices[-1].get_indexer_shape() if self._indices else shape
        # Whatever changes when all bits are set through the views is touched.
        seen = reference_views.look(self._zeros(), self.shown)
        ones = np.full((*seen.shape, seen.dtype.itemsize), 255, np.uint8)
        ones = ones.view(seen.dtype).reshape(seen.shape)
        marked, _ = reference_views.changed(self._zeros(), self.shown, ones, None)
        in_bytes = np.ascontiguousarray(marked)[..., None].view(np.uint8) > 0
        self.touched, self.covered = in_bytes.any(-1), in_bytes.all(-1)

    def _zeros(self) -> Any:
        import numpy as np

        return np.zeros(self._shape, self._dtype)

    def transforms(self, box: Sequence[slice]) -> Sequence[Any]:
        """Return the transforms, all of them indices, of a box in this part."""
        from jax._src.state import indexing

        slices = [indexing.Slice(s.start, len(range(s.start, s.stop, s.step)), s.step) for s in box]
        return (*self._indices, indexing.NDIndexer(tuple(slices), self._shape, ()))

    def boxes(self, places: Any) -> Iterator[tuple[slice, ...]]:
        """Yield boxes that cover exactly the places that are true."""
        import numpy as np

        axes = range(places.ndim)
        along = [np.flatnonzero(places.any(tuple(a for a in axes if a != n))) for n in axes]
        if not places.any():
            return
        if places[np.ix_(*along)].all() and all(len(set(np.diff(n))) < 2 for n in along):
            steps = [int(n[1] - n[0]) if len(n) > 1 else 1 for n in along]
            yield tuple(
                slice(int(n[0]), int(n[-1]) + 1, step) for n, step in zip(along, steps, strict=True)
            )
            return
        axis = next(n for n in axes if len(along[n]) > 1)
        for position in along[axis]:
            alone = np.zeros_like(places)
            row = tuple(int(position) if n == axis else slice(None) for n in axes)
            alone[row] = places[row]
            yield from self.boxes(alone)

    def read(self, get: Callable[..., Any], boxes: Iterable[tuple[slice, ...]]) -> Any:
        """Return this part with the values of some boxes, and zeros elsewhere."""
        values = self._zeros()
        for box in boxes:
            result = get(*self.before, self.transforms(box))
            values[box] = result[-1] if isinstance(result, tuple) else result
        return values


def _buffer(function: Any, device: Any, _core: Any, space: Any, number: Any) -> tuple[Any, Any]:
    """Return the shape and the dtype of a simulated buffer, which are the same on every core."""
    module = _interpreted(function)
    key = module["TPU_MEMORY_SPACE_NAMES"][int(space)], int(number), int(device)
    memory = module["_get_shared_memory"]().mem
    buffer = next(kept for place, kept in list(memory.items()) if place[:3] == key)
    return buffer.shape, buffer.dtype


def _sum(module: dict[str, Any], place: Sequence[Any], views: Sequence[Any], value: Any) -> Any:
    """Return what views show of a simulated buffer, with a value added.

    Args:
        module: the names in JAX's.
        place: a device, a core, a space and a number.
        views: may list a row more than once, which then has the sum of all that is added to it.
        value: to add.
    """
    import numpy as np

    device, core, space, number = place
    name = module["TPU_MEMORY_SPACE_NAMES"][int(space)]
    core = module["_local_core_id_or_zero_if_hbm"](int(core), name)
    content = module["_get_shared_memory"]().mem[name, int(number), int(device), core].content
    if not any(isinstance(view, ListedRows) for view in views):
        return reference_views.look(content, views) + value
    places = reference_views.look(np.arange(content.size).reshape(content.shape), views)
    total = content.flatten()
    np.add.at(total, places, value)  # what a mask leaves out is 0
    return total[places]


def _interpreted(function: Any) -> dict[str, Any]:
    """Return the names in JAX's module that has a ``partial`` function."""
    names: dict[str, Any] = inspect.unwrap(function.func).__globals__
    return names
