"""Check that each result of a libtpu program has the requested dimensions on a device.

A compiler's mistake there is seen without executing anything, as of
https://github.com/openxla/xla/issues/49005, whose indices had the rows of all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.lanes.aot.compiler import program_name
from harness.lanes.aot.optimized import results
from harness.lanes.hlo import Module
from harness.lanes.virtual.submitted import Submitted
from harness.model.mismatch import CompilationError

Dimensions = Sequence[tuple[int, ...]]


def is_comparable(program: Submitted) -> bool:
    """Return whether the program says how some result is divided among several devices."""
    options = _options(program)
    return bool(options.num_partitions > 1 and not all(_left_to_the_compiler(options)))


def check_results(program: Submitted, by_libtpu: Dimensions, compiled_here: bytes) -> None:
    """Compare with ``compiled_here``, the module that XLA's CPU compiler made of the program.

    Raises CompilationError if libtpu's program returns other dimensions on a device.
    """
    by_cpu = results(Module.FromString(compiled_here))
    difference = differing_results(by_libtpu, by_cpu, _left_to_the_compiler(_options(program)))
    if difference:
        raise CompilationError(f"{difference} (program {program_name(program)})")


def differing_results(by_libtpu: Dimensions, by_cpu: Dimensions, left: Sequence[bool]) -> str:
    """Describe the first result with other dimensions; "" if there is none.

    ``left`` says of each result whether the compiler may choose its sharding, and so its dimensions
    on a device; one value is for all.
    """
    if len(by_libtpu) != len(by_cpu):
        return f"results: expected {len(by_cpu)}, got {len(by_libtpu)}"
    every = left if len(left) == len(by_cpu) else list(left[:1] or [True]) * len(by_cpu)
    for number, (got, expected) in enumerate(zip(by_libtpu, by_cpu, strict=True)):
        if got != expected and not every[number]:
            return f"result {number} on a device: expected {[*expected]}, got {[*got]}"
    return ""


def _options(program: Submitted) -> Any:
    from jaxlib import xla_client

    return xla_client.CompileOptions.ParseFromString(program.options).executable_build_options


def _left_to_the_compiler(options: Any) -> list[bool]:
    return [*options.allow_spmd_sharding_propagation_to_output]
