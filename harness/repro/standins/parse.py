"""Stand-in for ``harness.ir.parse``: for one jaxlib, whose groups are lists of devices."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs._jax_mlir_ext import register_dialects
from jaxlib.mlir.dialects import stablehlo as _stablehlo

from harness.ir.facts import Collective, Program, TensorType

stablehlo: Any = _stablehlo
_DIMENSIONS = {
    "all_reduce": (),
    "all_gather": ("all_gather_dim",),
    "reduce_scatter": ("scatter_dimension",),
    "all_to_all": ("split_dimension", "concat_dimension"),
    "collective_broadcast": (),
    "collective_permute": (),
}


class InvalidProgramError(ValueError):
    """The text or artifact is not a module that MLIR's verifier accepts."""


def parse(source: str | bytes) -> Program:
    """Return the facts of a StableHLO module, which is text or a portable artifact."""
    registry = ir.DialectRegistry()
    register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    artifacts: Any = xla_client._xla.mlir
    try:
        with context:
            module: Any = source
            if isinstance(source, bytes):  # text up to jaxlib 0.9
                module = artifacts.deserialize_portable_artifact(source)
            module = ir.Module.parse(module) if isinstance(module, str) else module
    except Exception as error:
        raise InvalidProgramError(str(error)) from error
    (main,) = (each for each in module.body if each.attributes["sym_name"].value == "main")
    signature: Any = ir.FunctionType(main.attributes["function_type"].value)
    text = str(module)
    return Program(
        inputs=tuple(map(_tensor, signature.inputs)),
        outputs=tuple(map(_tensor, signature.results)),
        collectives=tuple(_collectives(module.operation)),
        text=text,
        artifact=artifacts.serialize_portable_artifact(text, stablehlo.get_current_version()),
    )


def _collectives(operation: Any) -> Iterator[Collective]:
    for inner in (each.operation for region in operation.regions for b in region for each in b):
        kind = inner.name.removeprefix("stablehlo.")
        if kind not in _DIMENSIONS:
            yield from _collectives(inner)
            continue
        groups, pairs = (_rows(inner, name) for name in ("replica_groups", "source_target_pairs"))
        yield Collective(
            kind=kind,
            operands=tuple(_tensor(operand.type) for operand in inner.operands),
            results=tuple(_tensor(result.type) for result in inner.results),
            reducer=_reducer(inner),
            groups=tuple(tuple(rank for rank in row if rank != -1) for row in groups),
            pairs=tuple((source, target) for source, target in pairs),
            dimensions=tuple(inner.attributes[name].value for name in _DIMENSIONS[kind]),
            split_count=inner.attributes["split_count"].value if kind == "all_to_all" else None,
        )


def _tensor(type_: Any) -> TensorType:
    ranked = ir.RankedTensorType(type_)
    return TensorType(tuple(ranked.shape), str(ranked.element_type))


def _reducer(operation: Any) -> str | None:
    if len(operation.regions) == 0:
        return None
    (block,) = operation.regions[0]
    *body, end = block
    if len(body) != 1 or list(end.operands) != list(body[0].results):
        return "other"
    if list(body[0].operands) != list(block.arguments):
        return "other"
    return str(body[0].operation.name).removeprefix("stablehlo.")


def _rows(operation: Any, name: str) -> Any:
    """Return the rows of a matrix of devices; -1 pads those of uneven groups."""
    return np.asarray(operation.attributes[name]).tolist() if name in operation.attributes else []
