"""What JAX's compiled programs consist of."""

from __future__ import annotations

from typing import Any

from harness.lanes.hlo import Module

_EXCHANGES = {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}


def exchanges(compiled: Any) -> set[str]:
    """Return the opcodes of the collectives in a program of ``jax.stages.Compiled``."""
    (program,) = compiled.runtime_executable().hlo_modules()
    module = Module.FromString(program.as_serialized_hlo_module_proto())
    opcodes = {
        instruction.opcode
        for computation in module.computations
        for instruction in computation.instructions
    }
    return opcodes & _EXCHANGES
