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


@dataclass(frozen=True)
class Passed:
    """The semaphores that a kernel takes and gives, of which JAX's interpretation is to know none.

    Attributes:
        operands: their positions among all operands.
        results: their positions among all results.
        shapes: of the operands, then of the results.
        allocated: how many arrays of semaphores the kernel allocates at its start before them.
    """

    operands: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
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


def taken_apart(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Passed]:
    """Return a ``pallas_call`` without the semaphores that it takes and gives, and those.

    Args:
        parameters: those of the primitive. A ``mpmd_map`` comes back as it is.
    """
    parameters = dict(parameters)
    grid, jaxpr = parameters.get("grid_mapping"), parameters.get("jaxpr")
    if grid is None or jaxpr is None:
        return parameters, Passed()
    first = grid.num_index_operands  # of what has a block
    blocks = jaxpr.invars[grid.slice_block_ops]
    taken = [n for n in range(grid.num_inputs) if is_semaphore(blocks[n].aval)]
    given = [n for n in range(grid.num_outputs) if is_semaphore(blocks[grid.num_inputs + n].aval)]
    if not taken and not given:
        return parameters, Passed()
    positions = [*taken, *(grid.num_inputs + n for n in given)]
    moved = [blocks[n] for n in positions]
    kept = [v for v in jaxpr.invars if v not in moved]
    scratch = jaxpr.invars[first + len(blocks) :]
    aliases = dict(parameters["input_output_aliases"])
    own = {first + n for n in taken} & {k for k, v in aliases.items() if v in given}
    if own:
        raise NotImplementedError("a semaphore that is an operand and in its place a result")
    changes: dict[str, Any] = {
        "block_mappings": tuple(
            block for n, block in enumerate(grid.block_mappings) if n not in positions
        ),
        "num_inputs": grid.num_inputs - len(taken),
        "num_outputs": grid.num_outputs - len(given),
    }
    if hasattr(grid, "scratch_avals"):  # since JAX 0.8
        changes["scratch_avals"] = (*grid.scratch_avals, *(v.aval for v in moved))
    else:
        changes["num_scratch_operands"] = grid.num_scratch_operands + len(moved)
    parameters["grid_mapping"] = grid.replace(**changes)
    parameters["jaxpr"] = jaxpr.replace(invars=[*kept, *moved])
    parameters["input_output_aliases"] = tuple(
        (k - sum(first + n < k for n in taken), v - sum(n < v for n in given))
        for k, v in aliases.items()
    )
    parameters["out_avals"] = tuple(
        aval for n, aval in enumerate(parameters["out_avals"]) if n not in given
    )
    before = grid.num_dynamic_grid_bounds + first
    return parameters, Passed(
        tuple(before + n for n in taken),
        tuple(given),
        tuple(tuple(v.aval.shape) for v in moved),
        sum(is_semaphore(v.aval) for v in scratch),
    )


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
        self._numbers.append(numbers)
        position = len(self._numbers) - 1 - self._passed.allocated
        if 0 <= position < len(self._operands):
            counts = self._operands[position]
            for number, count in zip(numbers.flat, counts.flat, strict=True):
                if count:
                    signal(int(number), int(count))

    def take_results(self, memory: Any, core: int) -> None:
        """Take the counts of the results from the interpreter's memory, and leave none there."""
        import numpy as np

        first = self._passed.allocated + len(self._passed.operands)
        for numbers in self._numbers[first : first + len(self._passed.results)]:
            counts = [_counts(memory.sem[int(number)]) for number in numbers.flat]
            values = np.array([each[core] for each in counts], np.int32)
            self.results.append(values.reshape(numbers.shape))
            for each in counts:
                each[core] = 0


def _counts(semaphore: Any) -> Any:
    """Return how often the semaphore has been signalled on each core, an array that can be set."""
    return semaphore.counts if hasattr(semaphore, "counts") else semaphore.count_by_core
