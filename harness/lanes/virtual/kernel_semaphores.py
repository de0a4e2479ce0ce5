"""Semaphores that go from one Pallas kernel to another, as numbers.

A kernel may start a copy whose semaphore is a result, and another one wait for it. JAX's TPU
interpret mode forgets its memory between kernels, so between them a semaphore is its count. In the
kernel it is one that the kernel allocates, which has the count of its operand at the start; what it
has at the end is the result. Copies are complete when the kernel that starts them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.lanes.virtual.kernel_jaxprs import jaxprs_of, with_jaxprs, with_same


@dataclass(frozen=True)
class Passed:
    """The semaphores that a kernel takes and gives, of which JAX's interpretation is to know none.

    In the place of each, the kernel allocates an array of semaphores: first for the operands, then
    for the results that are in no operand's place.

    Attributes:
        operands: their positions among all operands.
        results: their positions among all results.
        shapes: of the arrays that are allocated.
        sources: for each result, the number of its array.
        allocated: how many arrays of semaphores the kernel allocates at its start before them.
    """

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    sources: tuple[int, ...] = ()
    allocated: int = 0

    def __bool__(self) -> bool:
        return bool(self.shapes)

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the operands that are no semaphores, and the counts of those that are."""
        others = [each for n, each in enumerate(operands) if n not in self.operands]
        return others, [operands[n] for n in self.operands]

    def merge(self, results: Sequence[Any], counts: Sequence[Any]) -> list[Any]:
        """Return all results in their order, semaphores as their counts."""
        others, given = iter(results), dict(zip(self.results, counts, strict=True))
        total = len(results) + len(given)
        return [given[n] if n in given else next(others) for n in range(total)]


def is_semaphore(aval: Any) -> bool:
    """Return whether ``aval`` is an array of semaphores, or a reference to one."""
    from jax import dtypes

    dtype = getattr(getattr(aval, "inner_aval", aval), "dtype", None)
    # The class of their dtypes is elsewhere in each JAX; the only others of their kind are keys.
    return (
        dtype is not None
        and dtypes.issubdtype(dtype, dtypes.extended)
        and not dtypes.issubdtype(dtype, dtypes.prng_key)
    )


def taken_apart(parameters: Mapping[str, Any], operands: int) -> tuple[dict[str, Any], Passed]:
    """Return a kernel's call without the semaphores that it takes and gives, and those.

    Args:
        parameters: those of ``pallas_call`` or ``mpmd_map``. A call over several meshes comes back
            as it is, and one of a JAX that has no grid in its parameters.
        operands: how many there are.
    """
    parameters = dict(parameters)
    grid, jaxprs = parameters.get("grid_mapping"), jaxprs_of(parameters)
    if len(jaxprs) > 1 or "out_avals" not in parameters:
        return parameters, Passed()
    (jaxpr,) = jaxprs
    first, inputs = (grid.num_index_operands, grid.num_inputs) if grid else (0, operands)
    outputs = len(parameters["out_avals"])
    blocks = jaxpr.invars[first : first + inputs + outputs]
    scratch = jaxpr.invars[first + len(blocks) :]
    taken = [n for n in range(inputs) if is_semaphore(blocks[n].aval)]
    given = [n for n in range(outputs) if is_semaphore(blocks[inputs + n].aval)]
    if not taken and not given:
        return parameters, Passed()

    aliases = dict(parameters["input_output_aliases"])
    in_place = {result: operand - first for operand, result in aliases.items() if result in given}
    positions = [*taken, *(inputs + n for n in given if n not in in_place)]
    moved = [blocks[n] for n in positions]
    same = {blocks[inputs + result]: blocks[n] for result, n in in_place.items()}
    kept = [v for v in jaxpr.invars if v not in moved and v not in same]
    changed = with_same(jaxpr, same).replace(invars=[*kept, *moved])
    parameters = with_jaxprs(parameters, [changed])
    if grid:
        parameters["grid_mapping"] = _without(grid, [*taken, *(inputs + n for n in given)], moved)
    left = {
        k - sum(first + n < k for n in taken): v - sum(n < v for n in given)
        for k, v in aliases.items()
        if v not in in_place
    }
    of_both = type(parameters["input_output_aliases"])  # a mapping, or a tuple of pairs
    parameters["input_output_aliases"] = of_both(left.items() if of_both is tuple else left)
    parameters["out_avals"] = tuple(
        aval for n, aval in enumerate(parameters["out_avals"]) if n not in given
    )
    before = grid.num_dynamic_grid_bounds + first if grid else 0
    return parameters, Passed(
        tuple(before + n for n in taken),
        tuple(given),
        tuple(tuple(v.aval.shape) for v in moved),
        tuple(positions.index(in_place.get(n, inputs + n)) for n in given),
        sum(is_semaphore(v.aval) for v in scratch),
    )


def _without(grid: Any, positions: Sequence[int], scratch: Sequence[Any]) -> Any:
    """Return a grid mapping without the blocks at those positions, and with more scratch."""
    changes: dict[str, Any] = {
        "block_mappings": tuple(
            block for n, block in enumerate(grid.block_mappings) if n not in positions
        ),
        "num_inputs": grid.num_inputs - sum(n < grid.num_inputs for n in positions),
        "num_outputs": grid.num_outputs - sum(n >= grid.num_inputs for n in positions),
    }
    if hasattr(grid, "scratch_avals"):  # since JAX 0.8
        changes["scratch_avals"] = (*grid.scratch_avals, *(v.aval for v in scratch))
    else:
        changes["num_scratch_operands"] = grid.num_scratch_operands + len(scratch)
    return grid.replace(**changes)


class Counts:
    """The counts of the semaphores that a kernel takes and gives, in one of its executions."""

    def __init__(self, passed: Passed, operands: Sequence[Any]) -> None:
        self._passed, self._operands = passed, operands
        self._numbers: list[Any] = []  # of the semaphores in each array that was allocated
        self.results: list[Any] = []

    def allocate(self, numbers: Any, signal: Callable[[int, int], object]) -> None:
        """Note the numbers of an array of semaphores, and let them start with their counts.

        Args:
            numbers: those by which the interpreter knows them.
            signal: adds to the count of a semaphore by its number.
        """
        import numpy as np

        self._numbers.append(numbers)
        position = len(self._numbers) - 1 - self._passed.allocated
        if 0 <= position < len(self._operands):
            counts = self._operands[position]
            for number, count in zip(numbers.flat, counts.flat, strict=True):
                if count not in {0, np.iinfo(counts.dtype).max}:  # as unwritten memory has it
                    signal(int(number), int(count))

    def take_results(self, memory: Any, core: int) -> None:
        """Take the counts of the results from the interpreter's memory, and leave none there."""
        import numpy as np

        for source in self._passed.sources:
            numbers = self._numbers[self._passed.allocated + source]
            counts = [counts_of(memory.sem[int(number)]) for number in numbers.flat]
            values = np.array([each[core] for each in counts], np.int32)
            self.results.append(values.reshape(numbers.shape))
            for each in counts:
                each[core] = 0


def counts_of(semaphore: Any) -> Any:
    """Return how often the semaphore has been signalled on each core, an array that can be set."""
    return semaphore.counts if hasattr(semaphore, "counts") else semaphore.count_by_core
