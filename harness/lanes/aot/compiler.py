"""Compiles programs with the compiler of a platform's vendor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cache
from itertools import chain
from typing import Any

from harness.lanes.aot.cubin import KernelUse
from harness.lanes.aot.dump import OnChip
from harness.lanes.aot.optimized import Optimized
from harness.lanes.aot.vendor import vendor_for
from harness.lanes.hlo import DeviceAssignment, Module
from harness.lanes.virtual.submitted import Submitted, sorted_options
from harness.model.topology import Topology


class RefusedError(Exception):
    """The vendor's compiler refuses the program; the message is its own."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device: of the program's arguments and outputs, its temporaries and its code."""

    arguments: int
    outputs: int
    temporaries: int
    code: int


@dataclass(frozen=True)
class Compilation:
    """Result of compiling one program for one topology.

    ``flops`` are those of one device as XLA counts them in the optimized program, without what
    kernels do; ``changed`` says what the compiler did not take as torch_xla had written it;
    ``on_chip`` is None where the compiler does not say it; ``kernel_use`` is of GPUs, by kernel;
    ``options`` are the lane's own.
    """

    topology: Topology
    program: Optimized
    memory: Memory
    flops: int
    seconds: float
    on_chip: OnChip | None
    changed: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    kernel_use: Mapping[str, KernelUse] = field(default_factory=dict)


def compile_stablehlo(module: bytes, topology: Topology, *, partitions: bool) -> Compilation:
    """Compile a program for all devices of ``topology``, as torch_xla would have it compiled.

    Args:
        module: StableHLO, as a portable artifact or MLIR bytecode.
        topology: what to compile for.
        partitions: whether it is SPMD, one program for all devices, to be partitioned by its
            shardings; or else a replica's.

    Raises:
        RefusedError: the compiler refuses it.
        BadInputError: the compiler is missing or does not know the topology.
    """
    vendor = vendor_for(topology)
    devices = vendor.devices(topology)
    options = _options(devices, partitions=partitions)
    options.env_option_overrides = [*vendor.OPTIONS.items()]
    start = time.perf_counter()
    changed: tuple[str, ...] = ()
    try:
        executable = compiled(module, devices, options)
    except RefusedError as refused:
        if not any(text in str(refused) for text in _UNREADABLE):
            raise
        module, changed = _rewritten(module), (f"{_REWRITTEN}: {str(refused).splitlines()[0]}",)
        executable = compiled(module, devices, options)
    return _compilation(topology, executable, time.perf_counter() - start, changed)


def compile_submitted(program: Submitted, topology: Topology) -> Compilation:
    """Compile what a framework submitted on the virtual TPU, with the options that it gave there.

    The topology's devices stand in the place of the virtual TPU's, which are numbered slice by
    slice from 0, in the order of the program's device assignment.

    Raises:
        RefusedError: the compiler refuses it; the first line ends with the program's name.
        BadInputError: the compiler is missing or does not know the topology.
    """
    from jaxlib import xla_client

    vendor = vendor_for(topology)
    every = vendor.devices(topology)
    options = xla_client.CompileOptions.ParseFromString(program.options)
    options.env_option_overrides = [*options.env_option_overrides, *vendor.OPTIONS.items()]
    assignment = DeviceAssignment.FromString(options.device_assignment.serialize())
    parts = [[every[n] for n in part.replica_device_ids] for part in assignment.partitions]
    devices = [*zip(*parts, strict=True)]
    options.device_assignment = _assignment(devices)
    options.executable_build_options.device_assignment = options.device_assignment
    start = time.perf_counter()
    try:
        executable = compiled(_artifact(program), [*chain(*devices)], options)
    except RefusedError as refused:
        raise RefusedError(_noted(refused, f"program {program_name(program)}")) from refused
    return _compilation(topology, executable, time.perf_counter() - start)


def compile_jax(lowered: Any, topology: Topology) -> Compilation:
    """Compile what ``jax.jit(...).lower(...)`` returned for the compiler's devices.

    Raises RefusedError if it refuses the program. Its first line ends with the versions if this
    jax asks for another compiler.
    """
    vendor = vendor_for(topology)
    start = time.perf_counter()
    try:
        executable = lowered.compile(compiler_options=dict(vendor.OPTIONS)).runtime_executable()
    except Exception as error:  # XlaRuntimeError's place changed with jaxlib
        raise RefusedError(_noted(error, vendor.misfit())) from error
    return _compilation(topology, executable, time.perf_counter() - start)


def _noted(error: Exception, note: str) -> str:
    """Return the error's text with a note at the end of its first line, which has the status."""
    first, *rest = str(error).splitlines() or [""]
    return "\n".join([f"{first} ({note})" if note else first, *rest])


def program_name(program: Submitted) -> str:
    """Return the name that the program's module has."""
    from harness.ir.parse import name_of

    return Module.FromString(program.code).name if program.form == "hlo" else name_of(program.code)


def identity(program: Submitted) -> tuple[bytes | str, bytes]:
    """Return what is equal for programs that are the same to the compiler.

    They may come from other lines, and run on another chip where they run on one.
    """
    import numpy as np
    from jaxlib import xla_client

    from harness.ir.parse import read_artifact

    code = str(read_artifact(program.code)) if program.form == "mlir" else program.code
    options = xla_client.CompileOptions.ParseFromString(program.options)
    build = options.executable_build_options
    if build.num_replicas * build.num_partitions != 1:
        return code, sorted_options(program.options)
    first = xla_client.DeviceAssignment.create(np.zeros((1, 1), np.int32))
    options.device_assignment = build.device_assignment = first
    return code, sorted_options(options.SerializeAsString())


_UNREADABLE = ("deserializ", "Failed to parse", "dialect", "bytecode")
_REWRITTEN = "written anew by jaxlib's StableHLO"


def _rewritten(module: str | bytes) -> bytes:
    from harness.ir import parse

    return parse(module).artifact


def _artifact(program: Submitted) -> bytes:
    from jaxlib import xla_client

    if program.form == "mlir":
        return program.code
    computation = xla_client.XlaComputation(program.code)
    return _rewritten(str(xla_client._xla.mlir.xla_computation_to_mlir_module(computation)))


def compiled(module: Any, devices: Sequence[Any], options: Any) -> Any:
    """Compile a portable artifact, or an MLIR module; raise RefusedError."""
    from jaxlib import xla_client
    from jaxlib.version import __version_info__

    from harness.ir.parse import read_artifact

    client = devices[0].client
    try:
        # Since jaxlib 0.8 a module, which it serialises itself.
        if __version_info__ >= (0, 8):
            given = read_artifact(module) if isinstance(module, bytes) else module
        else:
            given = module if isinstance(module, bytes) else str(module).encode()
        if hasattr(xla_client._xla, "DeviceList"):
            try:
                listed = xla_client._xla.DeviceList(tuple(devices))
                return client.compile(given, listed, options)
            except TypeError:  # before jaxlib 0.6 the options alone name the devices
                if __version_info__ >= (0, 6):
                    raise
        return client.compile(given, options)
    except Exception as error:
        raise RefusedError(str(error)) from error


def _options(devices: Sequence[Any], *, partitions: bool) -> Any:
    import numpy as np
    from jaxlib import xla_client

    replicas, parts = (1, len(devices)) if partitions else (len(devices), 1)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, parts
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = replicas, parts
    build.device_assignment = _assignment(np.reshape(devices, (replicas, parts)))
    build.use_spmd_partitioning = partitions
    build.allow_spmd_sharding_propagation_to_output = [True]  # as torch_xla compiles
    # torch_xla's programs carry GSPMD's annotations; Shardy would take them for no sharding at all.
    build.use_shardy_partitioner = False
    return options


def _assignment(devices: Any) -> Any:
    """Return XLA's device assignment for an array of replicas × partitions."""
    import numpy as np
    from jaxlib import xla_client

    ids = np.array([[device.id for device in row] for row in devices])
    return xla_client.DeviceAssignment.create(ids)


def _compilation(
    topology: Topology, executable: Any, seconds: float, changed: tuple[str, ...] = ()
) -> Compilation:
    (module, *_) = executable.hlo_modules()
    stats = executable.get_compiled_memory_stats()
    vendor = vendor_for(topology)
    program = vendor.read(module.as_serialized_hlo_module_proto(), topology)
    memory = Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes - stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )
    needed = sum(astuple(memory))
    if 0 < (limit := vendor.memory(topology)) < needed:
        raise RefusedError(
            f"RESOURCE_EXHAUSTED: out of memory: {needed} bytes on a device, which "
            f"has {limit}: arguments {memory.arguments}, outputs {memory.outputs}, temporaries "
            f"{memory.temporaries} ({module.name})"
        )
    return Compilation(
        topology=topology,
        program=program,
        memory=memory,
        flops=_flops(module, program.custom_calls),
        seconds=seconds,
        on_chip=vendor.on_chip(program),
        changed=changed,
        options=vendor.OPTIONS,
        kernel_use=vendor.kernel_use(executable),
    )


def _flops(module: Any, custom_calls: int) -> int:
    # libtpu's own count, the executable's cost_analysis(), aborts the process without a TPU.
    from jaxlib import xla_client

    counted = xla_client._xla.hlo_module_cost_analysis(_counter(), module).get("flops", 0)
    return int(counted) + custom_calls  # XLA counts -1, "unknown", for each


@cache
def _counter() -> Any:
    """Return a CPU client that only counts operations. With JAX's own, JAX would start a client."""
    from jaxlib import xla_client

    return xla_client.make_cpu_client()
