"""Compares a program that has a fault with the same program without it, on random inputs.

Both are compiled and executed by jaxlib's own CPU client, over as many devices as the case had.
This module runs as a script, because a fault can end the process: it reads one fault from each
line of input, and writes a line as soon as it knows the result.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.lanes.hlo import Module, Sharding
from harness.lanes.replica_groups import replica_groups
from harness.sensitivity.fault import Compared
from harness.sensitivity.manual import inline_manual_calls, keep_manual
from harness.sensitivity.operators import devices_of, planted
from harness.sensitivity.taken import divide_reduce_scatters, leave_to_shardy

_SEEDS = (1, 2)
_BELOW = 8  # random integers are indices into what is there, mostly
_ROUNDINGS = 16  # of the smallest difference: far less than of a narrower type
_KEPT = (  # of the options
    "use_spmd_partitioning",
    "use_shardy_partitioner",
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
)
_COLLECTIVE = re.compile(
    r"^ *(?:ROOT )?%?(?P<name>\S+)"
    r" = (\S+) ((?:all-|collective-|reduce-scatter|ragged-all-)[a-z-]*)\(.*?\)(.*?)"
    r"(?:, metadata=.*)?$",
    re.MULTILINE,
)
_PAIRS = re.compile(r"source_target_pairs={({.*?})}")  # in any order
_METADATA = re.compile(r", metadata={[^}]*}")
_NAMES = re.compile(r"[%\w.-]*planted[\w.]*|%[\w.-]+|, metadata={[^}]*}|, backend_config=.*$")


def compared(fault: Mapping[str, Any], folder: Path) -> Compared:
    """Compare the program of a fault, in the format of ``Fault.text``, with the original."""
    return _compared(fault, folder, folder.joinpath(fault["program"]).read_bytes())


def compared_here(fault: Mapping[str, Any], original: bytes) -> Compared:
    """Compare a program whose kernels call functions of this process with its planted version."""
    from harness.lanes.virtual import host_callbacks

    host_callbacks.register_with_jaxlib()
    return _compared(fault, Path(fault["folder"]), original)


def _compared(fault: Mapping[str, Any], folder: Path, original: bytes) -> Compared:
    other = planted(fault, original)
    difference = list(_difference(original, other))
    try:
        options = folder.joinpath(f"{fault['program']}.options").read_bytes()
        before, after = (_Executable(code, options) for code in (original, other))
        why = before.differs_from(after)
    except Exception as error:
        why = f"{type(error).__name__}: {_first_line(error)}"
        return Compared(fault["number"], None, why, difference)
    return Compared(fault["number"], not why, why, difference)


class _Executable:
    """A program, compiled for this machine with the options that its case gave."""

    def __init__(self, code: bytes, given: bytes) -> None:
        from jaxlib import xla_client

        from harness.oracles.jax_cpu import cpu_client
        from harness.oracles.replicas import compiled

        theirs = xla_client.CompileOptions.ParseFromString(given)
        build = theirs.executable_build_options
        self._replicas, self._partitions = build.num_replicas, build.num_partitions
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = self._replicas, self._partitions
        own = options.executable_build_options
        for name in _KEPT:
            if hasattr(build, name):
                setattr(own, name, getattr(build, name))
        self._whole = Module.FromString(code)
        if getattr(own, "use_shardy_partitioner", False):
            leave_to_shardy(self._whole)
        divide_reduce_scatters(self._whole)
        has_manual = inline_manual_calls(self._whole)
        count = self._replicas * self._partitions
        grid = np.arange(count).reshape(self._replicas, self._partitions)
        options.device_assignment = xla_client.DeviceAssignment.create(grid)
        client = cpu_client(count)
        self._devices = client.local_devices()[:count]
        mlir = xla_client._xla.mlir
        taken = xla_client.XlaComputation(self._whole.SerializeToString())
        module = mlir.xla_computation_to_mlir_module(taken)
        if has_manual:
            module = keep_manual(module)
        self._loaded = compiled(client, module, self._devices, options)
        (optimized,) = self._loaded.hlo_modules()
        self._text = optimized.to_string()
        self._optimized = Module.FromString(optimized.as_serialized_hlo_module_proto())

    def differs_from(self, other: _Executable) -> str:
        """Describe the first difference of the other program's facts or results, "" for none."""
        if self._facts() != other._facts():
            return "other collectives or parameters"
        for seed in _SEEDS:
            given, mine = self._ran(seed)
            try:
                theirs = other._results(given)
            except RuntimeError as error:
                return f"an error: {_first_line(error)}"
            if len(mine) != len(theirs):
                return "another number of results"
            for a, b in zip(mine, theirs, strict=True):
                if a.shape != b.shape or a.dtype != b.dtype or not _equal(a, b):
                    return "other results"
        return ""

    def _facts(self) -> tuple[list[Any], list[str]]:
        """Return the parameters of each device, and the collectives."""
        alone = self._alone()
        every = _COLLECTIVE.finditer(self._text)
        matches = (match for match in every if match["name"] not in alone)
        collectives = (" ".join(match.groups()[1:]) for match in matches)
        return self._parameters(), sorted(
            _PAIRS.sub(_sorted, _NAMES.sub("", collective)) for collective in collectives
        )

    def _alone(self) -> set[str]:
        """Return the collectives that exchange nothing: each group has one device."""
        every = (
            i for computation in self._optimized.computations for i in computation.instructions
        )
        groups = {instruction.name: replica_groups(instruction) for instruction in every}
        return {
            name
            for name, of in groups.items()
            if of and all(len(instruction) == 1 for instruction in of)
        }

    def _parameters(self) -> list[tuple[tuple[int, ...], str]]:
        return [_type(parameter.shape) for parameter in _of_entry(self._optimized)]

    def _ran(
        self, seed: int, below: int = _BELOW
    ) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        """Return random arguments that the program accepts, and its results.

        A kernel may read out of bounds for some integers, so smaller ones are tried next.
        """
        given = self._arguments(seed, below)
        try:
            return given, self._results(given)
        except RuntimeError:
            if below == 2:  # zeros alone would let a kernel look at nothing
                raise
            return self._ran(seed, below // 2)

    def _results(self, given: list[list[np.ndarray]]) -> list[np.ndarray]:
        from harness.oracles.replicas import run

        return [value for column in run(self._loaded, self._devices, given) for value in column]

    def _arguments(self, seed: int, below: int) -> list[list[np.ndarray]]:
        """Return random values for each argument on each device; the seed decides them.

        They follow the shardings of the program without the fault, so both programs get the same.
        """
        chance = np.random.default_rng(seed)
        rising = seed == _SEEDS[-1]  # as offsets are
        whole = [_type(parameter.shape)[0] for parameter in _of_entry(self._whole)]
        arguments = []
        for number, (shape, dtype) in enumerate(self._parameters()):
            if self._partitions == 1:
                arguments.append(
                    [_random(chance, shape, dtype, below, rising=rising) for _ in self._devices]
                )
            else:
                full = _random(chance, whole[number], dtype, below, rising=rising)
                arguments.append(self._divided(number, full, shape))
        return arguments

    def _divided(self, number: int, full: np.ndarray, shape: Sequence[int]) -> list[np.ndarray]:
        """Return each device's part of a parameter, padded with zeros if it is smaller."""
        shardings = self._loaded.get_parameter_shardings()
        sharding = Sharding.FromString(shardings[number].SerializeToString()) if shardings else None
        tiles = list(sharding.tile_dimensions[: full.ndim]) if sharding else []
        if sharding is None or math.prod(tiles) <= 1:
            return [full] * len(self._devices)
        grid = np.array(devices_of(sharding)).reshape(*tiles, -1)
        parts = []
        for device in range(len(self._devices)):
            (place, *_) = np.argwhere(grid == device)
            starts = [int(n) * size for n, size in zip(place, shape, strict=False)]
            part = full[tuple(slice(n, n + size) for n, size in zip(starts, shape, strict=True))]
            parts.append(np.zeros(shape, full.dtype))
            parts[-1][tuple(slice(size) for size in part.shape)] = part
        return parts


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _sorted(pairs: re.Match[str]) -> str:
    return f"source_target_pairs={sorted(re.findall(r'{[^}]*}', pairs[1]))}"


def _of_entry(module: Module) -> Iterator[Any]:
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    parameters = [
        instruction for instruction in entry.instructions if instruction.opcode == "parameter"
    ]
    return iter(sorted(parameters, key=lambda instruction: instruction.parameter_number))


def _type(shape: Any) -> tuple[tuple[int, ...], str]:
    from harness.lanes.virtual.rewrites import DTYPES

    if shape.element_type not in DTYPES:
        raise ValueError(f"a parameter of element type {shape.element_type} of xla_data.proto")
    return tuple(shape.dimensions), DTYPES[shape.element_type].name


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether values are equal except for rounding, as when a sum changes its order."""
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    import ml_dtypes

    rounding = _ROUNDINGS * float(ml_dtypes.finfo(a.dtype).eps)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
    return bool(np.allclose(x, y, rtol=rounding, atol=rounding * largest, equal_nan=True))


def _random(
    chance: np.random.Generator, shape: Sequence[int], name: str, below: int, *, rising: bool
) -> np.ndarray:
    import ml_dtypes  # noqa: F401 - has NumPy know bfloat16

    dtype = np.dtype(name)
    if dtype.kind in "biu":
        values = chance.integers(0, 2 if dtype.kind == "b" else below, shape)
        return np.asarray(np.sort(values) if rising and shape else values, dtype)
    return chance.normal(size=shape).astype(dtype)


def _difference(original: bytes, other: bytes) -> Iterator[str]:
    from jaxlib import xla_client

    texts = (xla_client.XlaComputation(code).as_hlo_text() for code in (original, other))
    was, now = (_METADATA.sub("", text).splitlines() for text in texts)
    for line in difflib.unified_diff(was, now, n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def main() -> None:
    """Compare the fault of each line of standard input, and print the comparison as JSON."""
    from harness.oracles import jax_cpu

    jax_cpu.settle_most()
    for line in sys.stdin:
        fault = json.loads(line)
        answer = vars(compared(fault, Path(fault["folder"])))
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
