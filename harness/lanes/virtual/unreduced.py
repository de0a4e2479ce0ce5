"""Values that JAX makes unreduced: XLA's CPU compiler leaves the whole value on every device.

An axis of the mesh over which a value is unreduced has parts of it that are yet to be summed. The
partitioner of the pinned compiler makes such parts of a sum, as a matrix product's, but not of a
value that is whole. Here it becomes a sum of itself and zeros, one for each place on the axes. A
sum that takes parts over some axes and makes parts over others makes the partitioner abort: here it
makes parts over all of them first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from harness.lanes.virtual.lowering import operations

CONSTRAINT, MANUAL = "sdy.sharding_constraint", "sdy.manual_computation"
_AXES = re.compile(r", unreduced=\{([^}]*)\}")
_PARTS = re.compile(r"<(?P<mesh>@[^,]+|mesh<.*?>), \[(?P<dimensions>.*?)\]")
_SIZE = re.compile(r'"([^"]+)"=(\d+)')
# Of each the compiler makes parts itself.
_SUMS = frozenset(
    f"stablehlo.{name}"
    for name in ("dot_general", "convolution", "reduce", "reduce_window", "scatter", "custom_call")
)


def is_any(module: Any) -> bool:
    """Return whether a value of MLIR's module is made unreduced."""
    return any(
        (o.name == CONSTRAINT and _axes(str(o.attributes["sharding"])))
        or (
            o.name == "func.func"
            and "res_attrs" in o.attributes
            and _axes(str(o.attributes["res_attrs"]))
        )
        for o in operations(module.operation)
    )


def divide_whole_values(module: Any) -> int:
    """Make sums of the whole values that become unreduced, and keep parts in sums, in place.

    Args:
        module: of MLIR, with shardings of Shardy.

    Returns:
        How many there were.
    """
    meshes = {
        str(o.attributes["sym_name"]).strip('"'): str(o.attributes["mesh"])
        for o in operations(module.operation)
        if o.name == "sdy.mesh"
    }
    constraints = [o for o in operations(module.operation) if o.name == CONSTRAINT]
    constraints += _of_results(module)
    count = 0
    for constraint in constraints:
        sharding = str(constraint.attributes["sharding"])
        count += _keep_parts(constraint)
        new = sorted(_axes(sharding) - _unreduced(constraint.operands[0]))
        if new:
            parts = _PARTS.search(sharding)
            assert parts is not None, sharding
            sizes = dict(_SIZE.findall(meshes.get(parts["mesh"].lstrip("@"), parts["mesh"])))
            places = prod(int(sizes[axis]) for axis in new)
            constraint.operands[0] = _summed(constraint, parts, new, places)
            count += 1
    return count


def _keep_parts(constraint: Any) -> bool:
    """Let a sum of parts stay parts until the constraint; return whether it would not."""
    from jaxlib.mlir import ir

    value, sharding = constraint.operands[0], str(constraint.attributes["sharding"])
    owner = value.owner
    if getattr(owner, "name", "") not in _SUMS:
        return False
    taken = frozenset[str]().union(*map(_unreduced, owner.operands))
    if not (axes := _axes(sharding)) or taken <= axes:
        return False
    each = ", ".join(f'"{axis}"' for axis in sorted(axes | taken))
    with constraint.location, ir.InsertionPoint(constraint):
        parts = ir.Attribute.parse(_AXES.sub(f", unreduced={{{each}}}", sharding))
        kept = ir.Operation.create(CONSTRAINT, [value.type], [value], {"sharding": parts})
    constraint.operands[0] = kept.result
    return True


def _of_results(module: Any) -> list[Any]:
    """Write a constraint for each result that shall be unreduced, and return them."""
    from jaxlib.mlir import ir

    constraints = []
    for function in [o for o in operations(module.operation) if o.name == "func.func"]:
        named = function.attributes  # an older jaxlib's has no get()
        attributes = named["res_attrs"] if "res_attrs" in named else ()  # noqa: SIM401
        for number, of_result in enumerate(attributes):
            if not _axes(str(of_result)):
                continue
            *_, last = function.regions[0].blocks[0].operations
            value = last.operands[number]
            with last.location, ir.InsertionPoint(last):
                sharding = {"sharding": of_result["sdy.sharding"]}
                constraint = ir.Operation.create(CONSTRAINT, [value.type], [value], sharding)
            last.operands[number] = constraint.result
            constraints.append(constraint)
    return constraints


def _axes(sharding: str) -> frozenset[str]:
    match = _AXES.search(sharding)
    return frozenset(re.findall(r'"([^"]+)"', match[1])) if match else frozenset()


def _unreduced(value: Any) -> frozenset[str]:
    """Return the axes over which a value is unreduced, or may be for all that is known."""
    axes, seen, todo = frozenset[str](), set[Any](), [value]
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            known, made_of = _origin(value)
            axes |= known
            todo += made_of
    return axes


def _origin(value: Any) -> tuple[frozenset[str], list[Any]]:
    """Return the axes that are stated where a value is made, and the values that it is made of."""
    owner = value.owner
    if not hasattr(owner, "attributes"):  # a block, of whose arguments it is one
        return _origin_of_argument(value, owner)
    operation = owner.operation if hasattr(owner, "operation") else owner
    number = [*operation.results].index(value)
    if operation.name == CONSTRAINT:
        return _axes(str(operation.attributes["sharding"])), []
    if operation.name == MANUAL:
        return _axes(_each(operation.attributes["out_shardings"])[number]), []
    if operation.name in _SUMS:
        # What takes it says whether it is: a constraint of its own follows.
        takers = [use.owner for use in value.uses if use.owner.name == CONSTRAINT]
        stated = [_axes(str(taker.attributes["sharding"])) for taker in takers]
        return frozenset[str]().union(*stated), []
    if operation.name == "func.call":
        return frozenset(), list(_returned(operation, number))
    return frozenset(), [*operation.operands]


def _origin_of_argument(value: Any, block: Any) -> tuple[frozenset[str], list[Any]]:
    function = block.owner.operation
    number = [*block.arguments].index(value)
    if function.name == MANUAL:
        return _axes(_each(function.attributes["in_shardings"])[number]), []
    if function.name != "func.func":  # of a loop: what goes in
        return frozenset(), [*function.operands][number : number + 1]
    stated = frozenset[str]()
    if "arg_attrs" in function.attributes:
        stated = _axes(str(function.attributes["arg_attrs"][number]))
    name = str(function.attributes["sym_name"]).strip('"')
    calls = [
        each
        for each in operations(function.parent)
        if each.name == "func.call" and str(each.attributes["callee"]).lstrip("@") == name
    ]
    return stated, [call.operands[number] for call in calls]


def _returned(call: Any, number: int) -> Iterator[Any]:
    module = call
    while module.parent is not None:
        module = module.parent.operation
    name = str(call.attributes["callee"]).lstrip("@")
    for operation in operations(module):
        if operation.name == "func.func" and str(operation.attributes["sym_name"]) == f'"{name}"':
            *_, last = operation.regions[0].blocks[0].operations
            yield last.operands[number]


def _each(shardings: Any) -> list[str]:
    """Return the shardings of a list, as ``<[<@mesh, [{}]>, <@mesh, []>]>``, each as text."""
    return re.findall(r"<(?:@[^,]+|mesh<.*?>), \[.*?\](?:, [a-z]+=\{[^}]*\})*>", str(shardings))


def _summed(constraint: Any, parts: re.Match[str], axes: list[str], places: int) -> Any:
    """Write the sum in front of the constraint and return its result."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    value = constraint.operands[0]
    whole = ir.RankedTensorType(value.type)
    rank, element = whole.rank, whole.element_type
    over = "{" + ", ".join(f'"{axis}"' for axis in axes) + "}"
    dimensions = ", ".join(filter(None, (over, parts["dimensions"])))
    with constraint.location, ir.InsertionPoint(constraint):
        sharding = ir.Attribute.parse(f"#sdy.sharding<{parts['mesh']}, [{dimensions}]>")
        row = ir.RankedTensorType.get([1, *whole.shape], element)
        rows = ir.RankedTensorType.get([places, *whole.shape], element)
        scalar = ir.RankedTensorType.get([], element)
        zero = _zero(element)
        first = stablehlo.reshape(row, value)
        none = [0] * (rank + 1)
        padded = stablehlo.pad(first, zero, none, [places - 1, *[0] * rank], none)
        divided = ir.Operation.create(CONSTRAINT, [rows], [padded], {"sharding": sharding})
        total = stablehlo.ReduceOp([whole], [divided.result], [zero], [0])
        block = total.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            stablehlo.return_([stablehlo.add(*block.arguments)])
    return total.result


def _zero(element: Any) -> Any:
    """Write the zero of a type of elements."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if str(element).startswith("complex"):  # no constant: an older jaxlib aborts
        part = _zero(ir.ComplexType(element).element_type)
        return stablehlo.complex(part, part)
    text = "0.0" if str(element).startswith(("f", "bf")) else "0"
    text = "false" if str(element) == "i1" else text
    return stablehlo.constant(ir.Attribute.parse(f"dense<{text}> : tensor<{element}>"))
