"""Parsing and verifying StableHLO with jaxlib's MLIR bindings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as _stablehlo

from harness.ir.facts import Collective, Group, Program, TensorType

try:
    from jaxlib.mlir._mlir_libs._jax_mlir_ext import register_dialects
except ImportError:  # its name before jaxlib 0.7
    from jaxlib.mlir._mlir_libs.register_jax_dialects import register_dialects

try:
    from jaxlib.mlir.dialects import sdy
except ImportError:  # JAX exports no Shardy yet
    sdy = None
_sdy: Any = sdy
stablehlo: Any = _stablehlo  # its stub leaves out the functions of the C++ module
# Portable artifacts by way of XLA and text: StableHLO's own functions, given a context, abort in
# jaxlib 0.4.29, which has linked MLIR twice.
_artifacts: Any = xla_client._xla.mlir

_DIALECT = "stablehlo."
_DIMENSIONS = {
    "all_reduce": (),
    "all_gather": ("all_gather_dim",),
    "reduce_scatter": ("scatter_dimension",),
    "all_to_all": ("split_dimension", "concat_dimension"),
    "collective_broadcast": (),
    "collective_permute": (),
}
_PADDING = -1  # fills the rows of replica_groups when groups are uneven


class InvalidProgramError(ValueError):
    """The text or artifact is not a module that MLIR's verifier accepts."""


@cache
def _context() -> ir.Context:
    registry = ir.DialectRegistry()
    register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    if _sdy is not None:
        _sdy.register_dialect(context)
    return context


def parse(source: str | bytes) -> Program:
    """Read the facts of a StableHLO module given as text or as a portable artifact.

    Parsing verifies: the result is a valid module.

    Raises:
        InvalidProgramError: it doesn't parse, doesn't verify, or has no public function `main`.
    """
    module = _module(source)
    main = _entry(module)
    signature = ir.FunctionType(main.attributes["function_type"].value)
    text = str(module)
    return Program(
        inputs=tuple(map(_tensor, signature.inputs)),
        outputs=tuple(map(_tensor, signature.results)),
        collectives=tuple(_collectives(module.operation)),
        text=text,
        artifact=_artifacts.serialize_portable_artifact(text, stablehlo.get_current_version()),
    )


def read_artifact(artifact: bytes) -> Any:
    """Return the StableHLO module of a portable artifact."""
    with _context() as context:
        program = _artifacts.deserialize_portable_artifact(artifact)  # text before jaxlib 0.10
        return ir.Module.parse(program, context) if isinstance(program, str) else program


def name_of(artifact: bytes) -> str:
    """Return the module's name in a portable artifact, or raise InvalidProgramError."""
    name: str = _module(artifact).operation.attributes["sym_name"].value
    return name


def _module(source: str | bytes) -> Any:
    try:
        if isinstance(source, bytes):
            return read_artifact(source)
        return ir.Module.parse(source, _context())
    except Exception as error:  # MLIRError has no importable class, ValueError is not promised
        raise InvalidProgramError(str(error)) from error


def _entry(module: Any) -> Any:
    for operation in module.body.operations:
        if operation.attributes["sym_name"].value == "main":
            return operation
    raise InvalidProgramError("the module has no function main")


def _collectives(operation: Any) -> Iterator[Collective]:
    for region in operation.regions:
        for block in region:
            for inner in block:
                kind = inner.operation.name.removeprefix(_DIALECT)
                if kind in _DIMENSIONS:
                    yield _collective(kind, inner.operation)
                else:
                    yield from _collectives(inner.operation)


def _collective(kind: str, operation: Any) -> Collective:
    attributes = operation.attributes
    return Collective(
        kind=kind,
        operands=tuple(_tensor(operand.type) for operand in operation.operands),
        results=tuple(_tensor(result.type) for result in operation.results),
        reducer=_reducer(operation),
        groups=groups_of(operation),
        pairs=_pairs(attributes),
        dimensions=tuple(attributes[name].value for name in _DIMENSIONS[kind]),
        split_count=attributes["split_count"].value if kind == "all_to_all" else None,
    )


def _tensor(type_: Any) -> TensorType:
    ranked = ir.RankedTensorType(type_)
    return TensorType(tuple(ranked.shape), str(ranked.element_type))


def _reducer(operation: Any) -> str | None:
    if len(operation.regions) == 0:
        return None
    (block,) = operation.regions[0]
    *body, end = block
    if (
        len(body) == 1
        and list(body[0].operands) == list(block.arguments)
        and list(end.operands) == list(body[0].results)
    ):
        return str(body[0].operation.name).removeprefix(_DIALECT)
    return "other"


def _matrix(attributes: Any, name: str) -> np.ndarray:
    if name not in attributes:
        return np.empty((0, 0), np.int64)
    return np.asarray(attributes[name])


def groups_of(operation: Any) -> tuple[Group, ...]:
    """Return the groups of devices that a collective names, listed or as axes of a mesh."""
    attributes = operation.attributes
    of_axes = getattr(stablehlo, "ReplicaGroupMeshAxesAttr", None)  # since JAX 0.12
    if of_axes and "replica_groups" in attributes:
        attribute = attributes["replica_groups"]
        if of_axes.isinstance(attribute):
            return _groups_along(of_axes(attribute), operation)
    rows = _matrix(attributes, "replica_groups").tolist()
    return tuple(tuple(rank for rank in row if rank != _PADDING) for row in rows)


def _groups_along(given: Any, operation: Any) -> tuple[Group, ...]:
    """Return the groups of devices along axes of a mesh, or along parts of axes.

    A part (before)size of an axis is what remains of its places divided by ``size * after``, modulo
    ``size``: https://openxla.org/shardy/sharding_representation#sub_axes
    """
    mesh = _mesh(given.mesh, operation)
    parts: dict[str, tuple[int, int]] = {}  # axis to what stands before the part, and its size
    sizes = {axis.name: axis.size for axis in map(_sdy.MeshAxisAttr, mesh.axes)}
    for reference in map(stablehlo.AxisRefAttr, given.axes):
        part = reference.sub_axis_info and stablehlo.SubAxisInfoAttr(reference.sub_axis_info)
        whole = (1, sizes[reference.name])
        parts[reference.name] = (part.pre_size, part.size) if part else whole
    if len(parts) != len(given.axes):
        raise InvalidProgramError(f"expected each axis once in a replica group, found {given}")
    shape: list[int] = []
    chosen: dict[str, int] = {}
    for name, size in sizes.items():
        if name not in parts:
            shape.append(size)
            continue
        before, own = parts[name]
        chosen[name] = len(shape) + 1
        shape += [before, own, size // (before * own)]
    devices = np.array(list(mesh.device_ids) or range(int(np.prod(shape))))
    along = [chosen[name] for name in parts]
    others = [dimension for dimension in range(len(shape)) if dimension not in along]
    rows = devices.reshape(shape).transpose(*others, *along)
    count = int(np.prod([own for _, own in parts.values()]))
    return tuple(tuple(row) for row in rows.reshape(-1, count).tolist())


def _mesh(reference: Any, operation: Any) -> Any:
    if not isinstance(reference, ir.FlatSymbolRefAttr):
        raise InvalidProgramError(f"expected the name of a mesh, found {reference}")
    module = operation
    while module.parent is not None:
        module = module.parent
    for each in module.regions[0].blocks[0].operations:
        if each.operation.name == "sdy.mesh" and each.sym_name.value == reference.value:
            return _sdy.MeshAttr(each.attributes["mesh"])
    raise InvalidProgramError(f"the module has no mesh {reference}")


def _pairs(attributes: Any) -> tuple[tuple[int, int], ...]:
    rows = _matrix(attributes, "source_target_pairs").tolist()
    return tuple((source, target) for source, target in rows)
