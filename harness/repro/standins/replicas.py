"""Stand-in for ``harness.oracles.replicas``: for one jaxlib, whose clients have any devices."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

from harness.ir import Program

_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


class ExecutionError(RuntimeError):
    """XLA refused to compile or to run the program."""


def execute(program: Program, arguments: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """Run `program` in jaxlib's own XLA with one replica for each entry of `arguments`."""
    for values in arguments:
        given, taken = [value.shape for value in values], [each.shape for each in program.inputs]
        if given != taken:
            raise ValueError(f"the program takes {taken}, got {given}")
    count = len(arguments)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = count, 1
    assignment = np.arange(count).reshape(count, 1)
    options.device_assignment = xla_client.DeviceAssignment.create(assignment)
    client = xla_client.make_cpu_client(num_devices=count)
    devices: Any = tuple(client.local_devices()[:count])
    every = NamedSharding(Mesh(np.array(devices), "replica"), PartitionSpec())
    try:
        executable: Any = client.compile_and_load(
            program.artifact, xla_client.DeviceList(devices), options
        )
        columns = [
            jax.make_array_from_single_device_arrays(
                column[0].shape, every, [*map(_placed, column, devices)]
            )
            for column in zip(*arguments, strict=True)
        ]
        outcome = executable.execute_sharded(columns).disassemble_into_single_device_arrays()
        return [[np.asarray(column[r]) for column in outcome] for r in range(count)]
    except (RuntimeError, ValueError) as error:
        raise ExecutionError(str(error)) from error


def _placed(value: np.ndarray, device: Any) -> Any:
    with _enable_x64(True):  # or else JAX makes 32 bits of 64
        return jax.device_put(np.asarray(value, order="C"), device)
