"""Computes a StableHLO program without XLA: by the reference interpreter that jaxlib contains.

What a program says of whole arrays is computed once, whatever its annotations. A manual computation
is computed device by device, and NumPy computes its collectives. The semantics are those of
https://openxla.org/stablehlo/spec and https://openxla.org/shardy/sdy_dialect.

The interpreter ends the process at an operation that it does not know: call this in a fork.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.oracles import collectives
from harness.oracles.replicas import DTYPES
from harness.reduce.stablehlo import (
    attributes,
    called_target,
    copy_operation,
    every,
    inline,
    is_manual,
    main_of,
    mlir_context,
    nested,
    unmark,
)

_MANUAL = "sdy.manual_computation"
Values = list[np.ndarray]  # of each device, or of one that stands for all
_MESH = re.compile(r"@(\w+) = <\[(.*?)\](, device_ids=\[(.*?)\])?>")
_AXIS = re.compile(r'"(\w+)"=(\d+)')
_SHARDING = re.compile(r"<@(\w+), \[(.*?)\](?:, replicated={[^}]*})?>")
_DIMENSION = re.compile(r"{([^}]*)}")
_NARROW = ("bf16", "f16")
_REDUCERS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}


class UnknownError(Exception):
    """The program has something that is not computed here."""


def results(text: str, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return a program's whole results for whole arguments.

    Raises UnknownError, and ends the process at operations that the interpreter does not know.
    """
    from jaxlib.mlir import ir

    with mlir_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text)
        inline(module)
        if any(is_manual(operation) for operation in every(module)):
            raise UnknownError("a manual computation of GSPMD")
        meshes = {match[1]: _mesh(match) for match in _MESH.finditer(text)}
        mains = [operation for operation in every(module) if operation.name == _MANUAL]
        shardings = {hash(operation): _Borders.of(operation, meshes) for operation in mains}
        unmark(module, but=_MANUAL)
        block = main_of(module).regions[0].blocks[0]
        evaluator = _Evaluator(context, shardings, 1)
        return [values[0] for values in evaluator.run(block, [[a] for a in arguments])]


def parts(text: str, arguments: Sequence[Values], count: int) -> list[Values]:
    """Return each result's part on each device, of a program that each device runs.

    Raises UnknownError, and ends the process, as ``results`` does.
    """
    from jaxlib.mlir import ir

    with mlir_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text)
        inline(module)
        unmark(module)
        block = main_of(module).regions[0].blocks[0]
        return _Evaluator(context, {}, count).run(block, arguments)


def _mesh(match: re.Match[str]) -> Mapping[str, np.ndarray]:
    """Return each device's place along each axis."""
    axes = {name: int(size) for name, size in _AXIS.findall(match[2])}
    shape = tuple(axes.values())
    count = int(np.prod(shape))
    ids = np.array([int(n) for n in match[4].split(",")] if match[4] else range(count))
    places = np.empty((len(shape), count), int)
    places[:, ids] = np.array(np.unravel_index(np.arange(count), shape)).reshape(len(shape), count)
    return dict(zip(axes, places, strict=True)) | {"": np.array(shape)}


class _Borders:
    """How a manual computation's operands are divided, and its results put together."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], count: int) -> None:
        self.inputs, self.outputs, self.count = inputs, outputs, count

    @classmethod
    def of(cls, operation: Any, meshes: Mapping[str, Mapping[str, np.ndarray]]) -> _Borders:
        given = {name: str(value) for name, value in attributes(operation).items()}
        (mesh,) = {match[1] for match in _SHARDING.finditer(" ".join(given.values()))} or {""}
        if not mesh:
            raise UnknownError("a manual computation without a mesh")
        axes = meshes[mesh]
        names = [name for name in axes if name]
        if sorted(re.findall(r'"(\w+)"', given["manual_axes"])) != sorted(names):
            raise UnknownError("a computation that is manual over some axes")
        count = len(next(iter(axes.values()))) if names else 1
        sizes = dict(zip(names, axes[""], strict=True))
        inputs, outputs = (
            [_parts(match[2], axes, sizes, count) for match in _SHARDING.finditer(given[name])]
            for name in ("in_shardings", "out_shardings")
        )
        return cls(inputs, outputs, count)


def _parts(
    text: str, axes: Mapping[str, np.ndarray], sizes: Mapping[str, int], count: int
) -> list[tuple[int, np.ndarray]]:
    """Return for each dimension its number of parts, and the part that each device has."""
    dimensions = []
    for match in _DIMENSION.finditer(text):
        if ":" in match[1]:
            raise UnknownError("a part of an axis")
        number, place = 1, np.zeros(count, int)
        for name in re.findall(r'"(\w+)"', match[1]):
            number, place = number * int(sizes[name]), place * int(sizes[name]) + axes[name]
        dimensions.append((number, place))
    return dimensions


def _slices(parts: Sequence[tuple[int, np.ndarray]], shape: Sequence[int], device: int) -> Any:
    steps = [size // number for size, (number, _) in zip(shape, parts, strict=True)]
    places = [int(place[device]) for _, place in parts]
    return tuple(slice(n * s, n * s + s) for n, s in zip(places, steps, strict=True))


class _Evaluator:
    """Computes blocks, on one device that stands for all or on each of several."""

    def __init__(self, context: Any, borders: Mapping[int, _Borders], count: int) -> None:
        self._context, self._borders, self._count = context, borders, count

    def run(
        self, block: Any, arguments: Sequence[Values], outer: Mapping[int, Values] | None = None
    ) -> list[Values]:
        """Return the values that a block's end returns."""
        known = dict(outer or {})
        known |= dict(zip(map(hash, block.arguments), arguments, strict=True))
        waiting: list[Any] = []
        operations = [child.operation for child in block.operations]
        for operation in operations[:-1]:
            if (compute := self._own(operation)) is None:
                waiting.append(operation)
                continue
            self._interpret(waiting, known)
            waiting = []
            own = compute(operation, known)
            known |= dict(zip(map(hash, operation.results), own, strict=True))
        self._interpret(waiting, known)
        return [known[hash(value)] for value in operations[-1].operands]

    def _own(self, operation: Any) -> Callable[[Any, dict[int, Values]], list[Values]] | None:
        """Return what computes an operation that devices do together, None for any other."""
        name = operation.name
        if name == _MANUAL:
            return self._manual
        if name == "stablehlo.while" and _any_together(operation):
            return self._loop
        if name in ("stablehlo.case", "stablehlo.if") and _any_together(operation):
            raise UnknownError("collectives in a branch")
        if name == "stablehlo.partition_id":
            ids = [np.array(n, np.uint32) for n in range(self._count)]
            return lambda _operation, _known: [ids]
        if name in _COLLECTIVES:
            return self._collective
        if called_target(operation):
            raise UnknownError(f"a call of {called_target(operation)}")
        return None

    def _manual(self, operation: Any, known: dict[int, Values]) -> list[Values]:
        borders = self._borders[hash(operation)]
        given = []
        for operand, parts in zip(operation.operands, borders.inputs, strict=True):
            whole = known[hash(operand)][0]
            devices = range(borders.count)
            given.append([whole[_slices(parts, whole.shape, device)] for device in devices])
        inner = _Evaluator(self._context, self._borders, borders.count)
        outer = {key: values * borders.count for key, values in known.items() if len(values) == 1}
        results = []
        own = inner.run(operation.regions[0].blocks[0], given, outer)
        for parts, values in zip(borders.outputs, own, strict=True):
            shape = [
                size * number for size, (number, _) in zip(values[0].shape, parts, strict=True)
            ]
            whole = np.zeros(shape, values[0].dtype)
            for device, value in reversed(list(enumerate(values))):  # the first decides
                whole[_slices(parts, shape, device)] = value
            results.append([whole])
        return results

    def _loop(self, operation: Any, known: dict[int, Values]) -> list[Values]:
        state = [known[hash(value)] for value in operation.operands]
        condition, body = (region.blocks[0] for region in operation.regions)
        while True:
            (goes_on,) = self.run(condition, state, known)
            if len({bool(value) for value in goes_on}) > 1:
                raise UnknownError("devices that leave a loop at different times")
            if not goes_on[0]:
                return state
            state = self.run(body, state, known)

    def _collective(self, operation: Any, known: dict[int, Values]) -> list[Values]:
        named = attributes(operation)
        groups = [
            [int(n) for n in row if n >= 0] for row in np.array(named.get("replica_groups", [[]]))
        ]
        compute = _COLLECTIVES[operation.name]
        return [
            compute(known[hash(value)], [group for group in groups if group], named, operation)
            for value in operation.operands
        ]

    def _interpret(self, operations: Sequence[Any], known: dict[int, Values]) -> None:
        """Compute operations that each device does alone; add their results to what is known."""
        if not operations:
            return
        module, inputs, outputs = _module_of(operations)
        given = [known[hash(value)] for value in inputs]
        columns: list[Values] = [[] for _ in outputs]
        for device in range(self._count):
            pairs = zip(given, inputs, strict=True)
            arguments = [_attribute(values[device], value.type) for values, value in pairs]
            own = zip(outputs, _evaluated(module, arguments), strict=True)
            for column, (output, value) in zip(columns, own, strict=True):
                column.append(value.astype(_dtype(output.type)))
        known |= dict(zip(map(hash, outputs), columns, strict=True))


def _any_together(operation: Any) -> bool:
    return any(each.name in {*_COLLECTIVES, "stablehlo.partition_id"} for each in nested(operation))


def _module_of(operations: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Return a module of the operations, the values that it takes and those that it returns."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    computed = {hash(result) for operation in operations for result in operation.results}
    taken: dict[int, Any] = {}
    for operation in operations:
        inside = {
            hash(value)
            for each in (operation, *nested(operation))
            for region in each.regions
            for block in region.blocks
            for value in block.arguments
        } | {hash(value) for each in nested(operation) for value in each.results}
        for each in (operation, *nested(operation)):
            for value in each.operands:
                if hash(value) not in computed | inside:
                    taken[hash(value)] = value
    inputs = list(taken.values())
    outputs = [result for operation in operations for result in operation.results]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        given, own = ([_passed(value.type) for value in each] for each in (inputs, outputs))
        function = func.FuncOp("main", (given, own))
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        passed = map(_converted, block.arguments, [value.type for value in inputs])
        values = dict(zip(taken, passed, strict=True))
        for operation in operations:
            copy_operation(operation, values)
        func.ReturnOp([_converted(values[hash(v)], _passed(v.type)) for v in outputs])
    return module, inputs, outputs


def _passed(type_: Any) -> Any:
    """Return the type as which a value is passed to the interpreter: NumPy has no bfloat16."""
    from jaxlib.mlir import ir

    of = ir.RankedTensorType(type_)
    element = str(of.element_type)
    return ir.RankedTensorType.get(of.shape, ir.F32Type.get()) if element in _NARROW else type_


def _converted(value: Any, type_: Any) -> Any:
    from jaxlib.mlir import ir

    if value.type == type_:
        return value
    return ir.Operation.create("stablehlo.convert", results=[type_], operands=[value]).results[0]


def _evaluated(module: Any, arguments: Sequence[Any]) -> list[np.ndarray]:
    from jaxlib.mlir.dialects import stablehlo

    return [np.array(value) for value in stablehlo.eval_module(module, list(arguments))]


def _dtype(type_: Any) -> np.dtype[Any]:
    from jaxlib.mlir import ir

    element = str(ir.RankedTensorType(type_).element_type)
    if element not in DTYPES:
        raise UnknownError(f"a value of {element}")
    dtype: np.dtype[Any] = DTYPES[element]
    return dtype


def _attribute(value: np.ndarray, type_: Any) -> Any:
    from jaxlib.mlir import ir

    element = ir.RankedTensorType(_passed(type_)).element_type
    value = np.array(value, order="C")
    if value.dtype == bool:
        packed = np.packbits(value, bitorder="little")
        return ir.DenseElementsAttr.get(packed, type=element, shape=list(value.shape))
    if _passed(type_) != type_:
        value = value.astype(np.float32)
    return ir.DenseElementsAttr.get(value, type=element, shape=list(value.shape))


def _reducer(operation: Any) -> str:
    block = operation.regions[0].blocks[0]
    first, *others = [child.operation for child in block.operations]
    if first.name not in _REDUCERS or len(others) != 1:
        raise UnknownError("a reduction by another operation")
    return _REDUCERS[first.name]


def _number(named: Mapping[str, Any], name: str) -> int:
    from jaxlib.mlir import ir

    return int(ir.IntegerAttr(named[name]).value)


_COLLECTIVES: Mapping[str, Callable[..., Values]] = {
    "stablehlo.all_reduce": lambda values, groups, _, operation: collectives.all_reduce(
        values, _reducer(operation), groups
    ),
    "stablehlo.all_gather": lambda values, groups, named, _: collectives.all_gather(
        values, _number(named, "all_gather_dim"), groups
    ),
    "stablehlo.reduce_scatter": lambda values, groups, named, op: collectives.reduce_scatter(
        values, _reducer(op), _number(named, "scatter_dimension"), groups
    ),
    "stablehlo.all_to_all": lambda values, groups, named, _: collectives.all_to_all(
        values, _number(named, "split_dimension"), _number(named, "concat_dimension"), groups
    ),
    "stablehlo.collective_permute": lambda values, _, named, __: collectives.collective_permute(
        values, np.array(named["source_target_pairs"]).tolist()
    ),
}
