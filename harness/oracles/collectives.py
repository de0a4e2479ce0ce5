"""Reference for every collective, in NumPy: one array per rank in, one array per rank out.

Semantics after https://openxla.org/stablehlo/spec and
https://docs.pytorch.org/docs/stable/distributed.html. Groups are tuples of ranks that partition the
ranks; no groups mean one group of all ranks, and the order within a group is the order of
concatenation and of scattering. Results have the inputs' dtype: integers wrap, booleans add as `or`
and multiply as `and`, and floating-point sums and products are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Ranks = Sequence[np.ndarray]
Groups = Sequence[Sequence[int]]
Reduce = Callable[[np.ndarray], np.ndarray]


def all_reduce(inputs: Ranks, reducer: str, groups: Groups = ()) -> list[np.ndarray]:
    """Give each rank its group's elementwise reduction; `reducer` is a key of `REDUCERS`."""
    reduced = [np.empty(0)] * len(inputs)
    for group in partition(groups, len(inputs)):
        value = _reduce([inputs[rank] for rank in group], reducer)
        for rank in group:
            reduced[rank] = value
    return reduced


def all_gather(inputs: Ranks, axis: int, groups: Groups = ()) -> list[np.ndarray]:
    """Give each rank its group's inputs concatenated along `axis`, in the group's order."""
    gathered = [np.empty(0)] * len(inputs)
    for group in partition(groups, len(inputs)):
        value = np.concatenate([inputs[rank] for rank in group], axis)
        for rank in group:
            gathered[rank] = value
    return gathered


def reduce_scatter(inputs: Ranks, reducer: str, axis: int, groups: Groups = ()) -> list[np.ndarray]:
    """Give the i-th rank of a group the i-th equal part, along `axis`, of the group's reduction.

    Raises:
        ValueError: a group's size doesn't divide the axis.
    """
    scattered = [np.empty(0)] * len(inputs)
    for group in partition(groups, len(inputs)):
        parts = np.split(_reduce([inputs[rank] for rank in group], reducer), len(group), axis)
        for rank, part in zip(group, parts, strict=True):
            scattered[rank] = part
    return scattered


def all_to_all(
    inputs: Ranks, split_axis: int, concat_axis: int, groups: Groups = ()
) -> list[np.ndarray]:
    """Give the i-th rank of a group every member's i-th part, concatenated in the group's order.

    Raises:
        ValueError: a group's size doesn't divide the split axis.
    """
    exchanged = [np.empty(0)] * len(inputs)
    for group in partition(groups, len(inputs)):
        parts = [np.split(inputs[rank], len(group), split_axis) for rank in group]
        for position, rank in enumerate(group):
            exchanged[rank] = np.concatenate([part[position] for part in parts], concat_axis)
    return exchanged


def collective_permute(inputs: Ranks, pairs: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Give the target of each (source, target) pair the source's input, and other ranks zeros."""
    permuted = [np.zeros_like(value) for value in inputs]
    for source, target in pairs:
        permuted[target] = inputs[source]
    return permuted


def broadcast(inputs: Ranks, root: int) -> list[np.ndarray]:
    """Give every rank the root's input, bit for bit."""
    return [inputs[root]] * len(inputs)


def partition(groups: Groups, ranks: int) -> list[Sequence[int]]:
    """Return the groups, or one group of all ranks if there are none.

    Raises:
        ValueError: the groups don't hold each rank exactly once.
    """
    if not groups:
        return [range(ranks)]
    if sorted(rank for group in groups for rank in group) != list(range(ranks)):
        raise ValueError(f"groups {groups} don't partition {ranks} ranks")
    return list(groups)


def _fold(operation: np.ufunc, values: np.ndarray) -> np.ndarray:
    folded: np.ndarray = operation.reduce(values, 0, dtype=values.dtype)
    return folded


def _wide(values: np.ndarray) -> np.ndarray:
    """Floating-point values in double precision, so that a reduction rounds once."""
    return values if values.dtype.kind in "biu" else values.astype(np.float64)


REDUCERS: dict[str, Reduce] = {
    "sum": lambda values: _fold(np.add, _wide(values)),
    "mul": lambda values: _fold(np.multiply, _wide(values)),
    "min": lambda values: _fold(np.minimum, values),
    "max": lambda values: _fold(np.maximum, values),
    "and": lambda values: _fold(np.bitwise_and, values),
    "or": lambda values: _fold(np.bitwise_or, values),
}


def _reduce(values: Ranks, reducer: str) -> np.ndarray:
    stacked = np.stack(list(values))
    return np.asarray(REDUCERS[reducer](stacked)).astype(stacked.dtype)
