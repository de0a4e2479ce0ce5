"""Plants faults where no plugin sees programs: in what jaxlib's own CPU client is to compile.

That is what JAX compiles on lane ``cpu``, and programs that were exported, on every lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.lanes import events
from harness.lanes.virtual.lowering import as_hlo, hlo_of
from harness.oracles import replicas
from harness.sensitivity.planting import changed, keep_options

_T = TypeVar("_T")


def attach_to_exported() -> None:
    """Plant in the StableHLO that ``harness.oracles.replicas.execute`` is given."""

    def compiled(client: Any, module: bytes, devices: Any, options: Any) -> Any:
        return _compiled(
            as_hlo("mlir", module),
            options,
            lambda other: replicas.compiled(client, other or module, devices, options),
        )

    replicas.compile_with(compiled)


def attach_to_jax() -> None:
    """Plant in what JAX compiles, in this process.

    JAX has no public hook there: https://github.com/jax-ml/jax/blob/jax-v0.12.0/jax/_src/compiler.py
    """
    from jax._src import compiler
    from jax._src.interpreters.mlir import module_to_bytecode
    from jaxlib.mlir import ir

    name = "backend_compile_and_load"
    if not hasattr(compiler, name):  # before JAX 0.7
        name = "backend_compile"
    original = getattr(compiler, name)

    def compiled(backend: Any, module: Any, *others: Any, **named: Any) -> Any:
        arguments = [*others, *named.values()]
        (options,) = (
            argument for argument in arguments if type(argument).__name__ == "CompileOptions"
        )

        def compile_it(other: str) -> Any:
            with module.context:
                program = ir.Module.parse(other) if other else module
            return original(backend, program, *others, **named)

        return _compiled(hlo_of(module_to_bytecode(module)), options, compile_it)

    setattr(compiler, name, compiled)


def _compiled(hlo: bytes, options: Any, compile_it: Callable[[str], _T]) -> _T:
    """Compile a program with the planted fault, and return the executable.

    ``compile_it`` gets the changed program as MLIR, or "" if nothing was planted. If the compiler
    refuses the changed program, the original is compiled instead, as the plugin does.
    """
    from jaxlib import xla_client

    other, planted = changed("hlo", hlo)
    keep_options(options.SerializeAsString())
    if not planted:
        return compile_it("")
    events.write("plant", {}, stage="given")
    try:
        computation = xla_client.XlaComputation(other)
        executable = compile_it(xla_client._xla.mlir.xla_computation_to_mlir_module(computation))
    except Exception:  # of many types, by release: each is the compiler's refusal
        return compile_it("")
    events.write("plant", {}, stage="taken")
    events.write("plant", {}, stage="executed")  # as nearly all are that are compiled here
    return executable
