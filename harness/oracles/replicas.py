"""Executes a StableHLO program over several replicas with jaxlib's own CPU client.

This is a second XLA, apart from the one inside torch_xla: torch_xla 2.9.0 can't run a multi-replica
program on its CPU device (pytorch/xla#9089), and numbers from the code under test prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

from harness.ir import Program
from harness.oracles.jax_cpu import cpu_client

DTYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "ui8": np.dtype(np.uint8),
    "ui16": np.dtype(np.uint16),
    "ui32": np.dtype(np.uint32),
    "ui64": np.dtype(np.uint64),
    "i1": np.dtype(np.bool_),
}


_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class ExecutionError(RuntimeError):
    """XLA refused to compile or to run the program."""


def execute(program: Program, arguments: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run `program` with one replica per entry of `arguments`.

    `arguments[replica][i]` is the replica's i-th input: shape and dtype as in `program.inputs`
    (bfloat16 through ml_dtypes). The answer is `results[replica][i]`, likewise.

    Raises:
        ValueError: the arguments don't fit the program's signature.
        ExecutionError: XLA's message, when it doesn't compile or run.
    """
    for replica, values in enumerate(arguments):
        _check(program, replica, values)
    client = cpu_client(len(arguments))
    devices = client.local_devices()[: len(arguments)]
    try:
        executable = _compilers[-1](client, program.artifact, devices, _options(len(devices)))
        columns = run(executable, devices, list(zip(*arguments, strict=True)))
        return [[column[r] for column in columns] for r in range(len(arguments))]
    except (RuntimeError, ValueError) as error:
        raise ExecutionError(str(error)) from error


def compiled(client: Any, module: bytes | str, devices: Sequence[Any], options: Any) -> Any:
    """Compile a StableHLO module for jaxlib's own client, on every release."""
    if hasattr(client, "compile_and_load"):
        return client.compile_and_load(module, xla_client.DeviceList(tuple(devices)), options)
    return client.compile(module, options)  # before jaxlib 0.6.1


_Compile = Callable[[Any, Any, Sequence[Any], Any], Any]
_compilers: list[_Compile] = [compiled]


def compile_with(function: _Compile) -> None:
    """Have `execute` call it in place of `compiled`, for those who change programs."""
    _compilers.append(function)


def run(
    executable: Any, devices: Sequence[Any], arguments: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    """`results[i][device]` of an executable, given `arguments[i][device]`."""
    outcome = executable.execute_sharded(_sharded(devices, arguments))
    columns = outcome.disassemble_into_single_device_arrays()
    return [[np.asarray(shard) for shard in column] for column in columns]


def _options(replicas: int) -> Any:
    options = xla_client.CompileOptions()
    options.num_replicas = replicas
    options.num_partitions = 1
    assignment = np.arange(replicas).reshape(replicas, 1)
    options.device_assignment = xla_client.DeviceAssignment.create(assignment)
    return options


def _sharded(devices: Sequence[Any], arguments: Sequence[Sequence[np.ndarray]]) -> list[jax.Array]:
    """Make an array of each argument, with each device's value on that device.

    JAX calls them replicated, which is how it names one value of the full shape on every device;
    it does not look whether they are equal.
    """
    sharding = NamedSharding(Mesh(np.array(devices), "replica"), PartitionSpec())
    return [
        jax.make_array_from_single_device_arrays(
            column[0].shape,
            sharding,
            [_placed(value, device) for value, device in zip(column, devices, strict=True)],
        )
        for column in arguments
    ]


def _placed(value: np.ndarray, device: Any) -> Any:
    """Put the value on the device in its own dtype: by default, JAX makes 32 bits of 64."""
    with _enable_x64(True):
        return jax.device_put(np.asarray(value, order="C"), device)


def _check(program: Program, replica: int, values: Sequence[np.ndarray]) -> None:
    given = [(tuple(value.shape), value.dtype) for value in values]
    expected = [(type_.shape, DTYPES.get(type_.dtype)) for type_ in program.inputs]
    if given != expected:
        raise ValueError(f"replica {replica}: the program takes {expected}, got {given}")
