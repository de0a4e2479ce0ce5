"""Programs of operators: their text, how a plugin runs them, and what it may refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.conformance.c_api.api import UNIMPLEMENTED, ApiError
from harness.conformance.operators.closeness import Expected, first_difference
from harness.conformance.operators.devices import OperatorDevice
from harness.conformance.operators.element_types import Array, of, tensor
from harness.conformance.operators.required import is_required
from harness.conformance.plugin_check import NonconformanceError, UnsupportedError

_REFUSAL = re.compile(
    r"(?:un|not |n't |non-)(?:yet )?(?:support|implement)|failed to legalize"
    r"|illegal|unknown (?:type|op)|unregistered|invalid (?:element|primitive) type",
    re.IGNORECASE,
)
_MOST_ELEMENTS = 64  # of an operand that a program's comment shows


@dataclass(frozen=True)
class Operation:
    """An operator, its operands, and what its results have to be.

    ``name`` is as in programs, such as ``stablehlo.add``; ``attributes`` and ``regions`` are the
    text between braces. ``case`` tells the operations of one program apart.
    """

    name: str
    operands: Sequence[Array]
    expected: Sequence[Expected]
    attributes: str = ""
    regions: Sequence[str] = ()
    case: str = ""

    def lines(self, number: int, operands: Sequence[str]) -> tuple[str, list[str]]:
        """Return the text of the operation, and the names of its results."""
        results = [f"%r{number}_{place}" for place in range(len(self.expected))]
        regions = f" ({', '.join(f'{{{region}}}' for region in self.regions)})"
        attributes = f" {{{self.attributes}}}" if self.attributes else ""
        given = ", ".join(_type(operand) for operand in self.operands)
        types = ", ".join(expected.text for expected in self.expected)
        text = (
            f'{", ".join(results)} = "{self.name}"({", ".join(operands)})'
            f"{regions if self.regions else ''}{attributes} : ({given}) -> ({types})"
        )
        return text, results


@dataclass(frozen=True)
class ProgramLines:
    """Several operations as they stand in a program, whose operands are ``%0``, ``%1`` and so on.

    ``names`` are those of the results. No other operation can be in the same program.
    """

    name: str
    text: str
    names: Sequence[str]
    operands: Sequence[Array]
    expected: Sequence[Expected]
    case: str = ""

    def lines(self, _: int, __: Sequence[str]) -> tuple[str, list[str]]:
        """Return the text, and the names of the results."""
        return self.text, list(self.names)


def verify(
    device: OperatorDevice,
    operator: str,
    kind: str,
    *operations: Operation | ProgramLines,
    required: bool = True,
) -> None:
    """Run operations as one program; raise NonconformanceError unless all results are right.

    Raises UnsupportedError if the plugin refuses the operator with that element type, and may;
    it always may where not ``required``.
    """
    needed = required and is_required(operator, kind)
    results = run(device, f"{operator} of {kind}", operations, needed=needed)
    for operation in operations:
        case = f"{operation.case}: " if operation.case else ""
        for number, expected in enumerate(operation.expected):
            which = f"result {number}: " if len(operation.expected) > 1 else ""
            difference = first_difference(results.pop(0), expected, f"{case}{which}")
            if difference:
                raise NonconformanceError(f"{operator}: {difference}")


def run(
    device: OperatorDevice,
    label: str,
    operations: Sequence[Operation | ProgramLines],
    *,
    needed: bool,
) -> list[Array]:
    """Return the results of a program of these operations, on the first device."""
    code = module(operations)
    operands = [operand for each in operations for operand in each.operands]
    kinds = [result.kind for each in operations for result in each.expected]
    device.note_program(code + "".join(_comments(operands)))
    try:
        return device.evaluate(code, operands, kinds)
    except ApiError as error:
        if error.code != UNIMPLEMENTED and not _REFUSAL.search(error.message):
            raise
        if needed:
            raise NonconformanceError(f"every plugin needs {label}: {error}") from error
        raise UnsupportedError(f"{label}: {' '.join(error.message.split())[:200]}") from error


def module(operations: Sequence[Operation | ProgramLines]) -> str:
    """Return the program that takes all operands and returns all results."""
    arguments, names, types, body = list[str](), list[str](), list[str](), list[str]()
    for number, operation in enumerate(operations):
        own = [f"%{len(arguments) + place}" for place in range(len(operation.operands))]
        arguments += [
            f"{name}: {_type(each)}" for name, each in zip(own, operation.operands, strict=True)
        ]
        text, results = operation.lines(number, own)
        body.append(text)
        names += results
        types += [each.text for each in operation.expected]
    lines = "\n".join(f"    {line}" for text in body for line in text.strip().splitlines())
    return (
        "module @operators {\n"
        f"  func.func public @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n"
        f"{lines}\n"
        f"    return {', '.join(names)} : {', '.join(types)}\n  }}\n}}\n"
    )


def _type(operand: Array) -> str:
    return tensor(operand.shape, of(operand))


def _comments(operands: Sequence[Array]) -> Iterator[str]:
    """Yield what each operand holds, exactly if it is small."""
    for number, operand in enumerate(operands):
        first = operand.reshape(-1)[:_MOST_ELEMENTS]
        rest = ", ..." if operand.size > _MOST_ELEMENTS else ""
        yield f"// %{number} = [{', '.join(str(value) for value in first)}{rest}]\n"
