"""JAX's collectives as programs on each device's part of an array, and what each means in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from harness.oracles import collectives as oracle
from suites.shared.groups import Groups

Axes = tuple[str, ...]
IndexGroups = list[list[int]] | None
Meaning = Callable[[Sequence[np.ndarray], Groups], list[np.ndarray]]


@dataclass(frozen=True)
class JaxCollective:
    """A collective over the axes of a mesh, or over index groups of one axis.

    ``pullback`` is the meaning of its transpose: the gradients of the inputs, of those of the
    results. None where JAX has no rule. ``kind`` and ``reducer`` are the operation in StableHLO.
    """

    program: Callable[..., Any]  # of a device's part, the axes and, if given, index groups
    meaning: Meaning
    pullback: Meaning | None
    kind: str
    reducer: str | None = None


def _reduce(reducer: str) -> Meaning:
    return lambda xs, groups: oracle.all_reduce(xs, reducer, groups)


def _mean(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    sizes = {rank: len(group) for group in oracle.partition(groups, len(xs)) for rank in group}
    sums = oracle.all_reduce(xs, "sum", groups)
    return [(total / sizes[rank]).astype(total.dtype) for rank, total in enumerate(sums)]


def _gather(axis: int) -> Meaning:
    return lambda xs, groups: oracle.all_gather(xs, axis, groups)


def _stack(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return oracle.all_gather([x[None] for x in xs], 0, groups)


def _unstack(cts: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
    return [part[0] for part in oracle.reduce_scatter(cts, "sum", 0, groups)]


def _scatter(axis: int) -> Meaning:
    return lambda xs, groups: oracle.reduce_scatter(xs, "sum", axis, groups)


def _exchange(split: int, concat: int) -> Meaning:
    return lambda xs, groups: oracle.all_to_all(xs, split, concat, groups)


def _ring(step: int) -> Meaning:
    def meaning(xs: Sequence[np.ndarray], groups: Groups) -> list[np.ndarray]:
        pairs = [
            (group[place], group[(place + step) % len(group)])
            for group in oracle.partition(groups, len(xs))
            for place in range(len(group))
        ]
        return oracle.collective_permute(xs, pairs)

    return meaning


def _ppermute(x: jax.Array, axes: Axes) -> jax.Array:
    size = lax.psum(1, axes)
    return lax.ppermute(x, axes, [(source, (source + 1) % size) for source in range(size)])


def _shuffle(x: jax.Array, axes: Axes) -> jax.Array:
    size = lax.psum(1, axes)
    return lax.pshuffle(x, axes, [(target + 1) % size for target in range(size)])


_ALL_REDUCE = "all_reduce"
COLLECTIVES = {
    "psum": JaxCollective(
        lambda x, axes, groups=None: lax.psum(x, axes, axis_index_groups=groups),
        _reduce("sum"), _reduce("sum"), _ALL_REDUCE, "add",
    ),
    "pmean": JaxCollective(
        lambda x, axes, groups=None: lax.pmean(x, axes, axis_index_groups=groups),
        _mean, _mean, _ALL_REDUCE, "add",
    ),
    "pmax": JaxCollective(
        lambda x, axes, groups=None: lax.pmax(x, axes, axis_index_groups=groups),
        _reduce("max"), None, _ALL_REDUCE, "maximum",
    ),
    "pmin": JaxCollective(
        lambda x, axes, groups=None: lax.pmin(x, axes, axis_index_groups=groups),
        _reduce("min"), None, _ALL_REDUCE, "minimum",
    ),
    "all_gather": JaxCollective(
        lambda x, axes, groups=None: lax.all_gather(
            x, axes, axis=1, tiled=True, axis_index_groups=groups
        ),
        _gather(1), _scatter(1), "all_gather",
    ),
    "all_gather_stacked": JaxCollective(
        lambda x, axes, groups=None: lax.all_gather(x, axes, axis_index_groups=groups),
        _stack, _unstack, "all_gather",
    ),
    "psum_scatter": JaxCollective(
        lambda x, axes, groups=None: lax.psum_scatter(
            x, axes, scatter_dimension=0, tiled=True, axis_index_groups=groups
        ),
        _scatter(0), _gather(0), "reduce_scatter", "add",
    ),
    "all_to_all": JaxCollective(
        lambda x, axes, groups=None: lax.all_to_all(
            x, axes, split_axis=0, concat_axis=1, tiled=True, axis_index_groups=groups
        ),
        _exchange(0, 1), _exchange(1, 0), "all_to_all",
    ),
    "ppermute": JaxCollective(_ppermute, _ring(1), _ring(-1), "collective_permute"),
    "pshuffle": JaxCollective(_shuffle, _ring(-1), _ring(1), "collective_permute"),
}  # fmt: skip
AXES: dict[str, Axes] = {"all": ("x", "y"), "across": ("x",), "within": ("y",)}


def groups_of(axes: Axes, total: int) -> Groups:
    """Return the groups of devices that exchange over these axes of a mesh of two rows.

    The order of axes decides the order of devices within a group.
    """
    return groups_over(axes, {"x": 2, "y": total // 2})


def groups_over(axes: Axes, sizes: Mapping[str, int]) -> Groups:
    """Return the groups over these axes, of ranks that count over all axes of ``sizes``."""
    ranks = np.arange(math.prod(sizes.values())).reshape(*sizes.values())
    places = [list(sizes).index(name) for name in axes]
    moved = np.moveaxis(ranks, places, range(-len(places), 0))
    return tuple(map(tuple, moved.reshape(-1, math.prod(sizes[name] for name in axes)).tolist()))


def over(name: str, axes: Axes, groups: Groups = ()) -> Callable[[jax.Array], Any]:
    """Return the named collective as a function of a device's part alone."""
    program = COLLECTIVES[name].program
    return partial(_call, program, axes, [list(group) for group in groups] or None)


def _call(program: Callable[..., Any], axes: Axes, groups: IndexGroups, x: jax.Array) -> Any:
    return program(x, axes, groups) if groups else program(x, axes)
