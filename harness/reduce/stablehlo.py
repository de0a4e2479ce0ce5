"""A StableHLO module as text, and as MLIR that can be edited by jaxlib's parser and verifier."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_NO_INSTRUCTIONS = {"func.func", "builtin.module", "sdy.mesh", "stablehlo.constant"}
_MARKS = {"Sharding", "xla.sdy.FuncResultSharding", "annotate_device_placement"}
_CONSTRAINTS = {
    "mhlo.copy",
    "sdy.propagation_barrier",
    "sdy.reshard",
    "sdy.sharding_constraint",
}
_PER_DEVICE = {
    "sdy.manual_computation",
    "stablehlo.all_gather",
    "stablehlo.all_reduce",
    "stablehlo.all_to_all",
    "stablehlo.collective_broadcast",
    "stablehlo.collective_permute",
    "stablehlo.partition_id",
    "stablehlo.reduce_scatter",
    "stablehlo.replica_id",
}
_ANNOTATIONS = {"mhlo.frontend_attributes", "mhlo.sharding", "sdy.sharding"}
# JAX 0.12 notes a mesh a second time, where its size would have to change, too.
_MESH_NOTE = re.compile(r"^( *sdy\.mesh @\w+ = <.*?>) \{stablehlo\.mesh = .*\}$", re.MULTILINE)
_DEVICES = re.compile(r"mhlo\.num_(partitions|replicas) = (\d+)")


def mlir_context() -> Any:
    """Return a context for JAX's dialects that starts no thread: processes are forked from here."""
    from jax._src.interpreters import mlir

    context = mlir.make_ir_context()
    context.enable_multithreading(False)
    return context


def changed(text: str, change: Callable[[Any], bool]) -> str:
    """Return the text of a module after a change; "" if nothing changed or it is valid no more.

    ``change`` gets the ``ir.Module``, and returns whether it has changed it.
    """
    from jaxlib.mlir import ir

    with mlir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        if not change(module):
            return ""
        remove_dead(module)
        try:
            module.operation.verify()
        except ir.MLIRError:
            return ""
        return str(module)


def valid(text: str) -> str:
    """Return the text as MLIR writes it, "" if it is no valid module."""
    from jaxlib.mlir import ir

    try:
        return changed(text, lambda _: True)
    except ir.MLIRError:
        return ""


def bare(text: str) -> str:
    """Return the text without locations, names of results and calls of private functions."""

    def without_calls(module: Any) -> bool:
        inline(module)
        return True

    return _MESH_NOTE.sub(r"\1", changed(text, without_calls) or text)


def every(module: Any) -> list[Any]:
    """Return the operations of all functions, each before those within it."""
    return list(nested(module.operation))


def main_of(module: Any) -> Any:
    """Return the function that is the program."""
    return next(function for function in functions(module) if function.name.value == "main")


def functions(module: Any) -> list[Any]:
    """Return the functions of a module."""
    return [op for op in module.body.operations if op.operation.name == "func.func"]


def operation_names(text: str) -> list[str]:
    """Return the names of a module's instructions, sorted: no constant and no return is one."""
    names: list[str] = []

    def look(module: Any) -> bool:
        every_name = (operation.name for operation in every(module))
        names.extend(n for n in every_name if n not in _NO_INSTRUCTIONS and ".return" not in n)
        return False

    changed(text, look)
    return sorted(names)


def count(text: str) -> int:
    """Return the number of instructions: operations other than constants and returns."""
    return len(operation_names(text))


def replicas_and_partitions(text: str) -> tuple[int, int]:
    """Return how often all of the program runs, and in how many parts each of these is divided."""
    numbers = {name: int(number) for name, number in _DEVICES.findall(text)}
    return numbers.get("replicas", 1), numbers.get("partitions", 1)


def devices(text: str) -> int:
    """Return the number of devices that the program is for."""
    replicas, partitions = replicas_and_partitions(text)
    return replicas * partitions


def whole(text: str) -> str:
    """Return the program of one device that computes the same; "" if there is none.

    A module says what is computed of whole arrays, and its annotations only where. Within a manual
    computation, and beside collectives, it is about parts.
    """

    def strip(module: Any) -> bool:
        for operation in every(module):
            if operation.name in _PER_DEVICE or is_manual(operation):
                return False
        unmark(module)
        return True

    text = changed(text, strip)
    return _DEVICES.sub(lambda match: f"mhlo.num_{match[1]} = 1", text)


def is_manual(operation: Any) -> bool:
    """Return whether it is one of GSPMD's borders between whole arrays and parts."""
    return called_target(operation) in ("SPMDFullToShardShape", "SPMDShardToFullShape")


def called_target(operation: Any) -> str:
    """Return what a custom call calls, "" for any other operation."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return str(operation.attributes["call_target_name"]).strip('"')


def attributes(operation: Any) -> dict[str, Any]:
    """Return what an operation says, by name; jaxlib 0.10 and newer iterate over the names."""
    names = [getattr(each, "name", each) for each in operation.attributes]
    return {name: operation.attributes[name] for name in names}


def tensor_of(type_: Any) -> Any:
    """Return a type as a tensor's with its shape, None if it is none, such as a token's."""
    from jaxlib.mlir import ir

    try:
        return ir.RankedTensorType(type_)
    except ValueError:
        return None


def is_mark(operation: Any) -> bool:
    """Return whether an operation only says where its operand is."""
    return operation.name in _CONSTRAINTS or called_target(operation) in _MARKS


def unmark(module: Any, but: str = "") -> None:
    """Remove all that says where values are, but on operations of one name."""
    from jaxlib.mlir import ir

    for operation in every(module):
        if is_mark(operation):
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name != but:
            unmark_operation(operation)
    for function in functions(module):
        for name in ("arg_attrs", "res_attrs"):
            if name in function.attributes:
                empty = [ir.DictAttr.get({})] * len(function.attributes[name])
                function.attributes[name] = ir.ArrayAttr.get(empty)
    if not but:
        for operation in list(module.body.operations):
            if operation.operation.name == "sdy.mesh":
                operation.operation.erase()


def unmark_operation(operation: Any) -> bool:
    """Remove what an operation says of where its results are; return whether it said something."""
    names = _ANNOTATIONS & attributes(operation).keys()
    for name in names:
        del operation.attributes[name]
    return bool(names)


def remove_dead(module: Any) -> None:
    """Remove what nobody uses or calls, and one of two equal operations, by MLIR's own passes."""
    from jaxlib.mlir import passmanager

    passmanager.PassManager.parse("builtin.module(cse,symbol-dce)").run(module.operation)


def inline(module: Any) -> None:
    """Put a function's body in the place of each call."""
    from jaxlib.mlir import ir

    while True:
        calls = [op for op in every(module) if op.name in ("func.call", "call")]
        known = {function.name.value: function for function in functions(module)}
        call = next((c for c in calls if str(c.attributes["callee"]).lstrip("@") in known), None)
        if call is None:
            return
        body = known[str(call.attributes["callee"]).lstrip("@")].regions[0].blocks[0]
        with ir.InsertionPoint(call):
            outputs = copied(body, list(call.operands))
        for result, value in zip(call.results, outputs, strict=True):
            result.replace_all_uses_with(value)
        call.erase()


def copied(block: Any, arguments: list[Any]) -> list[Any]:
    """Copy a block's operations to the current place; return the values that its end returns."""
    values = dict(zip(map(hash, block.arguments), arguments, strict=True))
    for child in block.operations:
        operation = child.operation
        if operation.name.endswith("return"):
            return [values.get(hash(value), value) for value in operation.operands]
        copy_operation(operation, values)
    raise ValueError("expected a block that ends with a return")


def copy_operation(operation: Any, values: dict[int, Any]) -> None:
    """Copy an operation to the current place.

    ``values`` has the value to use for another one, by the other one's hash; the copy's results
    are added to it.
    """
    copy = operation.clone()
    for each in (copy, *nested(copy)):
        for number, value in enumerate(each.operands):
            if hash(value) in values:
                each.operands[number] = values[hash(value)]
    values |= dict(zip(map(hash, operation.results), copy.results, strict=True))


def nested(operation: Any) -> Iterator[Any]:
    """Yield the operations within one."""
    for region in operation.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from nested(child.operation)
