"""Find the trip counts of an optimized program's loops by running what determines them.

XLA writes the number into ``backend_config`` where it has found it; libtpu's programs mostly lack
it. A loop whose condition depends only on integers that are constant at its start, and that its
body changes by arithmetic, is run here with those integers alone. A loop that depends on data
turns an unknown number of times.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = 20_000  # turns that are tried
_BITS = {4: 32, 5: 64, 8: 32}  # s32, s64 and u32, by the numbers of PrimitiveType in xla_data.proto
_UNSIGNED = 8
_ALIKE = ("copy", "bitcast", "convert", "reshape")  # of a scalar
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "minimum": min,
    "maximum": max,
    "and": operator.and_,
    "or": operator.or_,
}
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}

Computations = Mapping[int, Any]
# What is known of a value: an integer, a tuple's elements, or None.
Value = int | tuple["Value", ...] | None


def trip_count(loop: Any, around: Any, computations: Computations) -> int | None:
    """Return how often a ``while`` turns, or None if the program does not say.

    ``around`` is the computation that the loop stands in.
    """
    try:
        return int(json.loads(loop.backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError):
        return _turns(loop, around, computations)


def _turns(loop: Any, around: Any, computations: Computations) -> int | None:
    body, condition = _parts(loop, computations)
    if body is None or condition is None:
        return None
    state = _Scope(around, computations, ()).value(loop.operand_ids[0])
    for turns in range(_MOST):
        goes_on = _Scope(condition, computations, (state,)).root
        if not isinstance(goes_on, int):
            return None
        if not goes_on:
            return turns
        after = _Scope(body, computations, (state,)).root
        if after == state:
            return None  # it would turn for ever
        state = after
    return None


def _parts(loop: Any, computations: Computations) -> tuple[Any, Any]:
    """Return the loop's body and its condition, whose result is a truth value."""
    parts = [computations[number] for number in loop.called_computation_ids]
    conditions = [part for part in parts if _root(part).shape.element_type == 1]
    bodies = [part for part in parts if part not in conditions]
    return next(iter(bodies), None), next(iter(conditions), None)


def _root(computation: Any) -> Any:
    return next(i for i in computation.instructions if i.id == computation.root_id)


@dataclass
class _Scope:
    """A computation given its arguments: evaluates what of it is known."""

    computation: Any
    computations: Computations
    arguments: tuple[Value, ...]
    _values: dict[int, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._instructions = {i.id: i for i in self.computation.instructions}

    @property
    def root(self) -> Value:
        return self.value(self.computation.root_id)

    def value(self, number: int) -> Value:
        if number not in self._values:
            self._values[number] = self._evaluate(self._instructions[number])
        return self._values[number]

    def _evaluate(self, instruction: Any) -> Value:
        if instruction.opcode in ("fusion", "call"):
            called = self.computations[instruction.called_computation_ids[0]]
            arguments = tuple(self.value(operand) for operand in instruction.operand_ids)
            return _Scope(called, self.computations, arguments).root
        if instruction.opcode == "tuple":
            return tuple(self.value(operand) for operand in instruction.operand_ids)
        if instruction.opcode == "get-tuple-element":
            whole = self.value(instruction.operand_ids[0])
            return whole[instruction.tuple_index] if isinstance(whole, tuple) else None
        if instruction.opcode == "parameter":
            number = instruction.parameter_number
            return self.arguments[number] if number < len(self.arguments) else None
        return None if instruction.shape.dimensions else self._scalar(instruction)

    def _scalar(self, instruction: Any) -> Value:
        if instruction.opcode == "constant":
            return _constant(instruction)
        if instruction.opcode in _ALIKE:
            return self.value(instruction.operand_ids[0])
        return self._computed(instruction)

    def _computed(self, instruction: Any) -> int | None:
        """Return the result of arithmetic with two integers."""
        operation = _BINARY.get(instruction.opcode)
        if instruction.opcode == "compare":
            operation = _COMPARISONS.get(instruction.comparison_direction)
        if operation is None:
            return None
        left, right = (self.value(operand) for operand in instruction.operand_ids)
        if not isinstance(left, int) or not isinstance(right, int):
            return None
        return _wrapped(operation(left, right), instruction.shape.element_type)


def _constant(instruction: Any) -> int | None:
    literal = instruction.literal
    numbers = [*literal.s32s, *literal.s64s, *literal.u32s]
    return int(numbers[0]) if len(numbers) == 1 else None


def _wrapped(number: int, element_type: int) -> int:
    """Wrap ``number`` around as integers of that type overflow."""
    if (bits := _BITS.get(element_type)) is None:
        return number
    number &= (1 << bits) - 1
    return number - (1 << bits) if element_type != _UNSIGNED and number >> (bits - 1) else number
