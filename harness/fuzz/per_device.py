"""Functions that each device computes of its part, with collectives: ``jax.shard_map``.

NumPy divides the operand, computes each device's part and puts the results together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.fuzz.draft import FLOATS, Draft, MeshShape, Spec, spec_text, type_text
from harness.oracles import collectives

Parts = list[np.ndarray]  # in the mesh's own order
_PART = "PART"  # stands for the part in the text of a statement
_WEIGHTS = "lambda w"  # of a gradient with respect to what all devices share


@dataclass(frozen=True)
class _Held:
    """What each device holds after a statement: a part of this shape, which ``spec`` places.

    Along an axis that is not among ``varying`` JAX knows that all devices hold the same.
    """

    shape: tuple[int, ...]
    spec: Spec
    dtype: str
    varying: frozenset[str]


_Statement = tuple[str, Callable[[Parts], Parts], _Held]


def per_device(draft: Draft) -> bool:
    """Map a function of one to three statements over the mesh."""
    mesh = draft.mesh
    if not (x := draft.value(lambda x: x.array.ndim > 0 and x.dtype != "bool")):
        return False
    spec = draft.spec(x.shape, even=True)
    shape = tuple(n // mesh.number(axes) for n, axes in zip(x.shape, spec, strict=True))
    held, text, computes = _Held(shape, spec, x.dtype, _axes_of(spec)), _PART, []
    for _ in range(draft.within(1, 3)):
        if statement := draft.of(_STATEMENTS)(draft, held):
            line, compute, held = statement
            text = line.replace(_PART, text)
            computes.append(compute)

    def parts_of(x: np.ndarray) -> Parts:
        parts = divided(x, spec, mesh)
        for compute in computes:
            parts = compute(parts)
        return parts

    parts = parts_of(x.array)
    if not computes or parts[0].size * mesh.count > 1024 or not _agree(parts, held.spec, mesh):
        return False
    named = _axes_of(spec) | _axes_of(held.spec)
    named |= {axis for axis in mesh.axes if f'"{axis}"' in text}
    is_partial = bool(named) and named != set(mesh.axes) and draft.coin()
    axes = f", axis_names={{{{{', '.join(map(repr, sorted(named)))}}}}}" if is_partial else ""
    # JAX takes a function's gradient only if it knows which of its parts are the same.
    is_checked = draft.is_checked and held.varying <= _axes_of(held.spec)
    specs = f"in_specs={spec_text(spec)}, out_specs={spec_text(held.spec)}"
    function = f"lambda p: {text.replace(_PART, 'p')}"
    is_added = draft.add(
        f"jax.shard_map({function}, mesh=mesh, {specs}, check_vma={is_checked}{axes})({{0}})",
        lambda x: whole(parts_of(x), held.spec, mesh),
        x,
        feature="per_device.some_axes" if is_partial else "per_device",
        smooth=is_checked and "lax.pm" not in text,
    )
    if is_added and is_checked:
        draft.features.add("per_device.checked")
        if _WEIGHTS in text:
            draft.features.add("per_device.weights")
    return is_added


def _agree(parts: Parts, spec: Spec, mesh: MeshShape) -> bool:
    """Return whether devices that should have the same part do: else any of them may decide."""
    again = divided(whole(parts, spec, mesh), spec, mesh)
    return all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def _places(spec: Spec, mesh: MeshShape, sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield where each device's part is, whose dimensions have these sizes."""
    each, numbers = mesh.places(), []
    for axes in spec:
        number = np.zeros(mesh.count, int)
        for axis in axes:
            number = number * mesh.axes[axis] + each[axis]
        numbers.append(number)
    for device in range(mesh.count):
        starts = [int(number[device]) * n for n, number in zip(sizes, numbers, strict=True)]
        yield tuple(slice(start, start + n) for start, n in zip(starts, sizes, strict=True))


def divided(x: np.ndarray, spec: Spec, mesh: MeshShape) -> Parts:
    """Return each device's part of an array, whose dimensions divide evenly."""
    sizes = [n // mesh.number(axes) for n, axes in zip(x.shape, spec, strict=True)]
    return [x[place] for place in _places(spec, mesh, sizes)]


def whole(parts: Parts, spec: Spec, mesh: MeshShape) -> np.ndarray:
    """Return the array of these parts."""
    sizes = parts[0].shape
    shape = [n * mesh.number(axes) for n, axes in zip(sizes, spec, strict=True)]
    array = np.zeros(shape, parts[0].dtype)
    for place, part in zip(_places(spec, mesh, sizes), parts, strict=True):
        array[place] = part
    return array


def groups_of(axes: Sequence[str], mesh: MeshShape) -> list[list[int]]:
    """Return the groups of devices that differ along these axes alone, in the axes' order."""
    places = mesh.places()
    others = [places[axis] for axis in mesh.axes if axis not in axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for device in range(mesh.count):
        groups.setdefault(tuple(int(each[device]) for each in others), []).append(device)
    within = [places[axis] for axis in axes]
    return [
        sorted(group, key=lambda device: tuple(int(each[device]) for each in within))
        for group in groups.values()
    ]


def _axes_text(axes: Sequence[str]) -> str:
    names = ", ".join(f'"{axis}"' for axis in axes)
    return names if len(axes) == 1 else f"({names})"


def _some_axes(draft: Draft) -> tuple[str, ...]:
    names = [*draft.mesh.axes]
    first = draft.of(names)
    others = [name for name in names if name != first]
    return (first, draft.of(others)) if others and draft.coin() else (first,)


def _axes_of(spec: Spec) -> frozenset[str]:
    return frozenset(axis for each in spec for axis in each)


def _without(spec: Spec, axes: Sequence[str]) -> Spec:
    return tuple(tuple(axis for axis in each if axis not in axes) for each in spec)


def _with(values: Sequence[int], changes: dict[int, int]) -> tuple[int, ...]:
    return tuple(changes.get(n, value) for n, value in enumerate(values))


def _reduced(draft: Draft, held: _Held) -> _Statement | None:
    """Reduce over axes: the parts are then the same along them."""
    axes = _some_axes(draft)
    name, reducer = draft.of((("psum", "sum"), ("pmax", "max"), ("pmin", "min")))
    groups = groups_of(axes, draft.mesh)
    return (
        f"lax.{name}({_PART}, {_axes_text(axes)})",
        lambda parts: collectives.all_reduce(parts, reducer, groups),
        replace(held, spec=_without(held.spec, axes), varying=held.varying.difference(axes)),
    )


def _gathered(draft: Draft, held: _Held) -> _Statement | None:
    """Gather a dimension along axes."""
    axes, axis = _some_axes(draft), draft.within(0, len(held.shape) - 1)
    groups = groups_of(axes, draft.mesh)
    shape = _with(held.shape, {axis: held.shape[axis] * draft.mesh.number(axes)})
    return (
        f"lax.all_gather({_PART}, {_axes_text(axes)}, axis={axis}, tiled=True)",
        lambda parts: collectives.all_gather(parts, axis, groups),
        replace(
            held, shape=shape, spec=_without(held.spec, axes), varying=held.varying.union(axes)
        ),
    )


def _scattered(draft: Draft, held: _Held) -> _Statement | None:
    """Sum over axes, and leave a part of the sum to each device."""
    axes, axis = _some_axes(draft), draft.within(0, len(held.shape) - 1)
    number = draft.mesh.number(axes)
    if held.shape[axis] % number:
        return None
    groups = groups_of(axes, draft.mesh)
    spec = list(_without(held.spec, axes))
    spec[axis] = (*spec[axis], *axes)
    shape = _with(held.shape, {axis: held.shape[axis] // number})
    return (
        f"lax.psum_scatter({_PART}, {_axes_text(axes)}, scatter_dimension={axis}, tiled=True)",
        lambda parts: collectives.reduce_scatter(parts, "sum", axis, groups),
        _Held(shape, tuple(spec), held.dtype, held.varying.union(axes)),
    )


def _exchanged(draft: Draft, held: _Held) -> _Statement | None:
    """Divide another dimension along axes than before."""
    axes = _some_axes(draft)
    number, groups = draft.mesh.number(axes), groups_of(axes, draft.mesh)
    able = [n for n, own in enumerate(held.spec) if own == axes]
    free = [n for n, own in enumerate(held.spec) if not own and held.shape[n] % number == 0]
    if not able or not free:
        return None
    concat, split = draft.of(able), draft.of(free)
    spec = list(held.spec)
    spec[concat], spec[split] = (), axes
    sizes = {concat: held.shape[concat] * number, split: held.shape[split] // number}
    return (
        f"lax.all_to_all({_PART}, {_axes_text(axes)}, {split}, {concat}, tiled=True)",
        lambda parts: collectives.all_to_all(parts, split, concat, groups),
        replace(held, shape=_with(held.shape, sizes), spec=tuple(spec)),
    )


def _moved(draft: Draft, held: _Held) -> _Statement | None:
    """Send parts to other devices; those that get none have zeros."""
    axis = draft.of([*draft.mesh.axes])
    size = draft.mesh.axes[axis]
    shift, groups = draft.within(1, max(size - 1, 1)), groups_of((axis,), draft.mesh)
    pairs = [(n, (n + shift) % size) for n in range(size)][: size - draft.within(0, 1)]
    every = [(group[a], group[b]) for group in groups for a, b in pairs]
    return (
        f'lax.ppermute({_PART}, "{axis}", {pairs})',
        lambda parts: collectives.collective_permute(parts, every),
        replace(held, varying=held.varying | {axis}),
    )


def _numbered(draft: Draft, held: _Held) -> _Statement | None:
    """Add each device's place along an axis."""
    axis = draft.of([*draft.mesh.axes])
    place = draft.mesh.places()[axis]
    return (
        f'{_PART} + lax.axis_index("{axis}").astype({type_text(held.dtype)})',
        lambda parts: [part + place[n].astype(part.dtype) for n, part in enumerate(parts)],
        replace(held, varying=held.varying | {axis}),
    )


def _alone(draft: Draft, held: _Held) -> _Statement | None:
    """Compute something of each part alone."""
    axis = draft.within(0, len(held.shape) - 1)
    text = draft.of([*_ALONE])
    return (
        text.format(_PART, axis),
        lambda parts: [_ALONE[text](part, axis) for part in parts],
        held,
    )


def _differentiated(draft: Draft, held: _Held) -> _Statement | None:
    """Take the gradient of each part's own sum, for the part or for weights of all devices."""
    if held.dtype not in FLOATS or draft.writer.framework != "jax":
        return None
    if draft.of((False, False, False, True)):
        weights = f"jnp.ones({held.shape}, {type_text(held.dtype)})"
        return f"jax.grad({_WEIGHTS}: (w * {_PART}).sum())({weights})", list, held
    return (
        f"jax.grad(lambda q: (q * q).sum())({_PART})",
        lambda parts: [part + part for part in parts],
        held,
    )


_ALONE: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "-({0})": lambda part, _: -part,
    "jnp.flip({0}, {1})": np.flip,
    "lax.cumsum({0}, {1})": lambda part, axis: np.cumsum(part, axis, dtype=part.dtype),
    "jnp.roll({0}, 1, {1})": lambda part, axis: np.roll(part, 1, axis),
}


_STATEMENTS: Sequence[Callable[[Draft, _Held], _Statement | None]] = (
    _reduced,
    _gathered,
    _scattered,
    _exchanged,
    _moved,
    _numbered,
    _alone,
    _differentiated,
)
