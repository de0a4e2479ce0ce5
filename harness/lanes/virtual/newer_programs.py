"""Programs in the place of what JAX has made, and the mark by which libtpu is given JAX's own."""

from __future__ import annotations

import hashlib
from typing import Any

# What a program calls that JAX can't write for XLA's CPU compiler, where libtpu is asked as well;
# plugin/compile/refusals.c has it.
UNKNOWN = "xla_harness.newer_stablehlo"


def bytecode_of(module: Any) -> bytes:
    """Return MLIR's bytecode of a module."""
    from jax._src.interpreters.mlir import module_to_bytecode

    bytecode: bytes = module_to_bytecode(module)
    return bytecode


def copy_of(module: Any) -> Any:
    """Return a copy of MLIR's module, in the same context: JAX keeps the one that it has made."""
    from jaxlib.mlir import ir

    return ir.Module.parse(bytecode_of(module), module.context)


def artifact_of(module: Any) -> bytes:
    """Return the module as a portable artifact, in the newest StableHLO that jaxlib writes."""
    from jaxlib import xla_client
    from jaxlib.mlir.dialects import stablehlo

    artifact: bytes = xla_client._xla.mlir.serialize_portable_artifact(
        bytecode_of(module), stablehlo.get_current_version(), True
    )
    return artifact


def in_stablehlo_alone(module: Any) -> Any:
    """Return a copy of MLIR's module in which shardings are attributes, as XLA writes Shardy's.

    Beside operations of Shardy, MLIR writes 8-bit floats in a way that an older one can't read.
    """
    from jaxlib import xla_client
    from jaxlib.mlir.dialects import stablehlo

    artifact = xla_client._xla.mlir.serialize_portable_artifact(
        bytecode_of(module), stablehlo.get_current_version(), False
    )
    return stablehlo.deserialize_portable_artifact(module.context, artifact)


def mark(module: Any, artifact: bytes) -> str:
    """Write into the module what it was made of, in place, and return the text.

    It is the same in all processes of a job, whose equal programs stay equal.
    """
    from jaxlib.mlir import ir

    text = f"xla_harness.made_of.{hashlib.sha256(artifact).hexdigest()}"
    with module.context:
        module.operation.attributes["xla_harness.made_of"] = ir.StringAttr.get(text)
    return text


def make_unknown(module: Any) -> None:
    """Have the module compute nothing but a call that XLA's CPU compiler refuses, in place.

    What it takes and returns is the same, and how that is divided.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func, stablehlo

    functions = [o for o in module.body.operations if isinstance(o, func.FuncOp)]
    for function in functions:
        if function.name.value != "main":
            function.erase()
            continue
        block = function.entry_block
        for operation in reversed([*block.operations]):
            operation.erase()
        types = function.type.results
        with function.location, ir.InsertionPoint(block):
            call = stablehlo.CustomCallOp(types, [], ir.StringAttr.get(UNKNOWN))
            func.ReturnOp([*call.results])
