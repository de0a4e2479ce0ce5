"""Computes a StableHLO program without XLA: by the reference interpreter that jaxlib contains.

What a program says of whole arrays is computed once, whatever its annotations. A manual computation
is computed device by device, and NumPy computes its collectives: for each place along the axes that
are manual, whatever is divided by the others. So is all of a program with GSPMD's calls from whole
arrays to parts and back, and of one that several replicas run. The semantics are those of
https://openxla.org/stablehlo/spec and https://openxla.org/shardy/sdy_dialect.

The interpreter ends the process at an operation that it does not know: call this in a fork.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.ir.parse import groups_of
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
    replicas_and_partitions,
    tensor_of,
    unmark,
)

_MANUAL = "sdy.manual_computation"
Values = list[np.ndarray]  # of each device, or of one that stands for all
_MESH = re.compile(r"@(\w+) = <\[(.*?)\](, device_ids=\[(.*?)\])?>")
_AXIS = re.compile(r'"(\w+)"=(\d+)')
_SHARDING = re.compile(r"<@(\w+), \[(.*?)\](?:, replicated={[^}]*})?>")
_DIMENSION = re.compile(r"{([^}]*)}")
_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](T\(([\d,]+)\))?|([\d,]+))")
_KINDS = re.compile(r"last_tile_dims={([^}]*)}")
_IDS = ("stablehlo.partition_id", "stablehlo.replica_id")
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
        devices = range(replicas_and_partitions(text)[1])
        meshes = {match[1]: _mesh(match) for match in _MESH.finditer(text)}
        mains = [operation for operation in every(module) if operation.name == _MANUAL]
        borders: dict[int, Any] = {hash(op): _Borders.of(op, meshes) for op in mains}
        calls = [operation for operation in every(module) if is_manual(operation)]
        borders |= {hash(call): _Tiles.of(call, len(devices)) for call in calls}
        unmark(module, but=_MANUAL)
        block = main_of(module).regions[0].blocks[0]
        # GSPMD's calls stand between other operations, so each device computes all of it.
        members = [[device] for device in devices] if calls else [list(devices)]
        evaluator = _Evaluator(context, borders, members)
        return [
            values[0] for values in evaluator.run(block, [[a] * len(members) for a in arguments])
        ]


def parts(text: str, arguments: Sequence[Values], count: int) -> list[Values]:
    """Return each result's part on each device, of a program that each device or replica runs.

    Raises UnknownError, and ends the process, as ``results`` does.
    """
    from jaxlib.mlir import ir

    with mlir_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text)
        inline(module)
        unmark(module)
        block = main_of(module).regions[0].blocks[0]
        number = _IDS[replicas_and_partitions(text)[0] > 1]
        return _Evaluator(context, {}, [[n] for n in range(count)], number).run(block, arguments)


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

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], place: np.ndarray) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.place = place  # of each device along the axes that are manual

    @classmethod
    def of(cls, operation: Any, meshes: Mapping[str, Mapping[str, np.ndarray]]) -> _Borders:
        given = {name: str(value) for name, value in attributes(operation).items()}
        (mesh,) = {match[1] for match in _SHARDING.finditer(" ".join(given.values()))} or {""}
        if not mesh:
            raise UnknownError("a manual computation without a mesh")
        axes = meshes[mesh]
        sizes = dict(zip([name for name in axes if name], map(int, axes[""]), strict=True))
        manual = {name: sizes[name] for name in re.findall(r'"(\w+)"', given["manual_axes"])}
        count = len(next(iter(axes.values()))) if sizes else 1
        inputs, outputs = (
            [_parts(match[2], axes, manual, count) for match in _SHARDING.finditer(given[name])]
            for name in ("in_shardings", "out_shardings")
        )
        return cls(inputs, outputs, _place(axes, manual, manual, count))

    def inner(self, members: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
        """Divide groups of devices by their places; return each part, after its group's number."""
        divided: dict[tuple[int, int], list[int]] = {}
        for outer, devices in enumerate(members):
            for device in devices:
                divided.setdefault((outer, int(self.place[device])), []).append(device)
        return sorted(((n, part) for (n, _), part in divided.items()), key=lambda pair: pair[1][0])


def _parts(
    text: str, axes: Mapping[str, np.ndarray], sizes: Mapping[str, int], count: int
) -> list[tuple[int, np.ndarray]]:
    """Return for each dimension its number of parts, and the part that each device has.

    Of the axes that divide it only those in ``sizes`` count.
    """
    dimensions = []
    for match in _DIMENSION.finditer(text):
        if ":" in match[1]:
            raise UnknownError("a part of an axis")
        names = [name for name in re.findall(r'"(\w+)"', match[1]) if name in sizes]
        number = math.prod(sizes[name] for name in names)
        dimensions.append((number, _place(axes, names, sizes, count)))
    return dimensions


def _place(
    axes: Mapping[str, np.ndarray], names: Iterable[str], sizes: Mapping[str, int], count: int
) -> np.ndarray:
    place = np.zeros(count, int)
    for name in names:
        place = place * sizes[name] + axes[name]
    return place


class _Tiles:
    """How one of GSPMD's calls divides its operand, or puts its result together."""

    def __init__(self, parts: Sequence[tuple[int, np.ndarray]], groups: np.ndarray) -> None:
        self.parts = parts
        self.groups = groups  # devices with one number put their parts together

    @classmethod
    def of(cls, call: Any, count: int) -> _Tiles:
        from jaxlib.mlir import ir

        marked = call
        if called_target(call) == "SPMDFullToShardShape":
            marked = call.operands[0].owner
            if isinstance(marked, ir.Block):
                raise UnknownError("a part of an argument")
        text = str(attributes(marked).get("mhlo.sharding", ""))
        rank = tensor_of(call.results[0].type).rank
        if "{replicated}" in text:
            return cls([(1, np.zeros(count, int))] * rank, np.zeros(count, int))
        if not (match := _TILES.search(text)):
            raise UnknownError(f"a sharding: {text}")
        shape = [int(n) for n in match[1].split(",")]
        if match[5]:
            grid = np.array([int(n) for n in match[5].split(",")])
        else:
            grid = np.arange(count).reshape([int(n) for n in match[2].split(",")])
            grid = grid.transpose([int(n) for n in match[4].split(",")]) if match[4] else grid
        grid = grid.reshape(shape)
        places = np.array([np.argwhere(grid == device)[0] for device in range(count)])
        kinds = _KINDS.search(text)
        names = [name.strip() for name in kinds[1].split(",")] if kinds else []
        groups = np.zeros(count, int)
        for dimension, name in enumerate(names, rank):
            if name == "manual":
                groups = groups * shape[dimension] + places[:, dimension]
        return cls([(shape[n], places[:, n]) for n in range(rank)], groups)


def _slices(parts: Sequence[tuple[int, np.ndarray]], shape: Sequence[int], device: int) -> Any:
    steps = [size // number for size, (number, _) in zip(shape, parts, strict=True)]
    places = [int(place[device]) for _, place in parts]
    return tuple(slice(n * s, n * s + s) for n, s in zip(places, steps, strict=True))


class _Evaluator:
    """Computes blocks, once for each group of devices that have the same values, as ``members``."""

    def __init__(
        self,
        context: Any,
        borders: Mapping[int, Any],
        members: Sequence[Sequence[int]],
        number: str = _IDS[0],
    ) -> None:
        self._context, self._borders, self._members = context, borders, members
        self._id = number  # which operation returns a device's number
        self._count = len(members)

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
        if name in _IDS:
            if any(len(devices) > 1 for devices in self._members):
                raise UnknownError("the number of one of several devices")
            of = [device if name == self._id else 0 for (device,) in self._members]
            return lambda _operation, _known: [[np.array(n, np.uint32) for n in of]]
        if is_manual(operation):
            return self._border
        if name in _COLLECTIVES:
            return self._collective
        if called_target(operation):
            raise UnknownError(f"a call of {called_target(operation)}")
        return None

    def _manual(self, operation: Any, known: dict[int, Values]) -> list[Values]:
        borders = self._borders[hash(operation)]
        inner = borders.inner(self._members)
        given = [
            [_part(known[hash(operand)][outer], parts, devices[0]) for outer, devices in inner]
            for operand, parts in zip(operation.operands, borders.inputs, strict=True)
        ]
        outside = {key: [values[outer] for outer, _ in inner] for key, values in known.items()}
        evaluator = _Evaluator(self._context, self._borders, [devices for _, devices in inner])
        own = evaluator.run(operation.regions[0].blocks[0], given, outside)
        results: list[Values] = []
        for parts, values in zip(borders.outputs, own, strict=True):
            pairs = list(zip(inner, values, strict=True))
            results.append(
                [
                    _whole([(v, devices[0]) for (n, devices), v in pairs if n == outer], parts)
                    for outer in range(self._count)
                ]
            )
        return results

    def _border(self, operation: Any, known: dict[int, Values]) -> list[Values]:
        """Compute GSPMD's calls, where each device has values of its own."""
        tiles, values = self._borders[hash(operation)], known[hash(operation.operands[0])]
        if called_target(operation) == "SPMDFullToShardShape":
            own = [_part(value, tiles.parts, device) for device, value in enumerate(values)]
        else:
            own = [
                _whole(
                    [(v, n) for n, v in enumerate(values) if tiles.groups[n] == group], tiles.parts
                )
                for group in tiles.groups
            ]
        if own[0].shape != tuple(tensor_of(operation.results[0].type).shape):
            raise UnknownError("a part that is divided further")
        return [own]

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
        numbers = {device: n for n, devices in enumerate(self._members) for device in devices}
        rows = groups_of(operation) or np.array(named.get("source_target_pairs", [])).tolist()
        # Devices that have the same values here are in the same groups.
        groups = dict.fromkeys(tuple(numbers[device] for device in row) for row in rows)
        if "source_target_pairs" in named and len({pair[-1] for pair in groups}) < len(groups):
            raise UnknownError("a permutation that differs along axes that are not manual")
        compute = _COLLECTIVES[operation.name]
        return [
            compute(known[hash(value)], list(groups), named, operation)
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
    return any(each.name in {*_COLLECTIVES, *_IDS, _MANUAL} for each in nested(operation))


def _part(whole: np.ndarray, parts: Sequence[tuple[int, np.ndarray]], device: int) -> np.ndarray:
    part: np.ndarray = whole[_slices(parts, whole.shape, device)]
    return part


def _whole(
    values: Sequence[tuple[np.ndarray, int]], parts: Sequence[tuple[int, np.ndarray]]
) -> np.ndarray:
    """Put together the values of devices; of those that are for one place the first counts."""
    first = values[0][0]
    sizes = zip(first.shape, parts, strict=True)
    whole = np.zeros([size * number for size, (number, _) in sizes], first.dtype)
    for value, device in reversed(values):
        whole[_slices(parts, whole.shape, device)] = value
    return whole


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
    "stablehlo.collective_permute": lambda values, pairs, _, __: collectives.collective_permute(
        values, pairs
    ),
}
