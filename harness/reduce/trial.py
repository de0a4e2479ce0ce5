"""How a program ends: compiled and executed in a process of its own, by jaxlib's XLA for CPUs.

Its numbers are right if they are those of the reference interpreter, which shares no code with XLA.
What the interpreter does not know is computed on one device, where no program is divided.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.diagnosis.signature import generalised
from harness.reduce.stablehlo import (
    devices,
    main_of,
    mlir_context,
    replicas_and_partitions,
    whole,
)

Flags = Mapping[str, object]
Tile = tuple[tuple[int, int], ...]  # the start and the end of each dimension
SEEDS = range(1, 9)
_DIVIDED = ("spmd-cleanup", "after_spmd-partitioning")  # in the name of the first dump that is
_PADDED = ", of a padded argument"
_LIMIT = 20.0  # seconds of one program
_FLOATS = (-4, 5)  # sums of so small numbers are not rounded
_INTEGERS = ((0, 13), (0, 4), (-8, 9), (0, 64))  # indices within arrays, and beyond
_INTERPRETED = 1 << 16  # bytes of arguments: the interpreter takes microseconds for each element
_ROUNDING = 1e-3  # of the largest number: what is wrong is wrong by more
_NAMES = re.compile(r"%[\w.-]+|\"[^\"]*\"|'[^']*'|[\w./-]+\.(?:cc|h):\d+")


@dataclass(frozen=True)
class ProgramEnding:
    """How a program ended.

    Attributes:
        kind: ``right``, ``wrong``, ``refused`` by the compiler, ``failed`` while it ran, ``crash``,
            ``hang``, or ``invalid``, which is no program.
        text: the error's first line, the signal, or how the numbers differ.
        seed: of the arguments with which they do.
    """

    kind: str
    text: str = ""
    seed: int = 0

    @property
    def signature(self) -> tuple[str, str]:
        """Return what is equal for equal failures: an error without its names and numbers.

        JAX divides arguments evenly, so it could not submit a program that needs padding.
        """
        if self.kind == "wrong":
            return self.kind, _PADDED if self.text.endswith(_PADDED) else ""
        if self.kind not in ("refused", "failed"):
            return self.kind, self.text
        return self.kind, generalised(_NAMES.sub("", self.text))[:80]


def endings(
    texts: Sequence[str],
    flags: Sequence[Flags] = (),
    seeds: Sequence[int] = SEEDS,
    limit: float = _LIMIT,
) -> list[ProgramEnding]:
    """Return how programs end that run at the same time, each in a fork of this process.

    ``flags`` are XLA's for each program, without ``--``. This process must have started no client.
    """
    load()
    each = flags or [{}] * len(texts)
    computed = [partial(_ended, *pair, seeds) for pair in zip(texts, each, strict=True)]
    children = list(map(_Child, computed))
    until = time.monotonic() + limit
    return [
        ProgramEnding(kind, *detail) if isinstance(detail, tuple) else ProgramEnding(kind, detail)
        for kind, detail in (child.answer(until) for child in children)
    ]


def in_a_fork(compute: Callable[[], tuple[str, Any]]) -> tuple[str, Any]:
    """Return what a function returns in a fork, or how that ended: a kind and a detail."""
    load()
    return _Child(compute).answer(time.monotonic() + _LIMIT)


def values_of(text: str) -> list[Any]:
    """Return the results of a program without arguments as lists; none if it does not run."""
    kind, values = in_a_fork(partial(_values, text))
    return values if kind == "values" else []


def _values(text: str) -> tuple[str, Any]:
    return "values", [value.tolist() for value in _Compiled(text, 1, {}).results([])]


class _Child:
    """A fork of this process that computes an answer: a kind, and what belongs to it."""

    def __init__(self, compute: Callable[[], tuple[str, Any]]) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if not self._pid:
            try:
                os.close(self._read)
                _say_nothing()
                os.write(write, _answered(compute))
            finally:
                os._exit(0)
        os.close(write)

    def answer(self, until: float) -> tuple[str, Any]:
        """Wait for the answer, or say how the process ended without one; end it at a time."""
        answer = b""
        while select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
            part = os.read(self._read, 4096)
            if not part:
                break
            answer += part
        else:
            os.kill(self._pid, signal.SIGKILL)
            answer = b""  # a part of one is none
        _, status = os.waitpid(self._pid, 0)
        os.close(self._read)
        if answer:
            kind, detail = pickle.loads(answer)  # noqa: S301 - of this module
            return kind, detail
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGKILL:
            return "hang", ""
        return "crash", signal.Signals(number).name if number else "exit"


def _answered(compute: Callable[[], tuple[str, Any]]) -> bytes:
    try:
        return pickle.dumps(compute())
    except Exception as error:
        return pickle.dumps(("failed", f"{type(error).__name__}: {_first_line(error)}"))


def load() -> None:
    """Import what each fork needs, and start nothing."""
    import jax
    from jax._src.interpreters import mlir  # noqa: F401
    from jaxlib import xla_client  # noqa: F401

    jax.config.update("jax_platforms", "cpu")


def _say_nothing() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)


def _ended(text: str, flags: Flags, seeds: Sequence[int]) -> tuple[str, Any]:
    number = devices(text)
    try:
        program = _Compiled(text, number, flags)
    except Exception as error:
        kind = "invalid" if "parse" in str(error).lower()[:60] else "refused"
        return kind, _first_line(error)
    is_judged = False
    try:
        for seed in seeds:
            given = program.arguments(seed)
            own = program.results(given)
            if (right := _right(text, given)) is None:
                continue
            is_judged = True
            for place, (a, b) in enumerate(zip(right, own, strict=True)):
                if difference := _difference(a, b):
                    padded = "" if program.is_even(given) else _PADDED
                    return "wrong", (f"result {place}: {difference}{padded}", seed)
    except Exception as error:
        return "failed", _first_line(error)
    return ("right", "") if is_judged else ("ran", "")


def _right(text: str, given: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    """Return the right results: of the interpreter, else of XLA on one device, else None."""
    size = sum(value.nbytes for value in given)
    if size <= _INTERPRETED:
        until = time.monotonic() + _LIMIT / 4
        kind, values = _Child(partial(_interpreted, text, given)).answer(until)
        if kind == "values":
            return list(values)
    return _Compiled(alone, 1, {}).results(given) if (alone := whole(text)) else None


def _interpreted(text: str, given: Sequence[np.ndarray]) -> tuple[str, Any]:
    from harness.reduce import oracle

    return "values", oracle.results(text, given)


def placement(text: str, seed: int) -> tuple[str, Any]:
    """Return the arguments of a seed, what is expected of them, and who has which parts."""
    program = _Compiled(text, devices(text), {})
    given = program.arguments(seed)
    return "values", {
        "arguments": given,
        "parts": program.argument_tiles(given),
        "result_parts": program.result_tiles(),
        "expected": _right(text, given),
    }


def wrong_dump(text: str, seed: int, paths: Sequence[str]) -> tuple[str, str]:
    """Return the first dump of XLA's passes that says something wrong, "" for none.

    The interpreter computes each, so neither the passes behind it nor the machine code matter. Once
    a program is divided, that is each device's part. What it can't compute is left out.
    """
    program = _Compiled(text, number := devices(text), {})
    given = program.arguments(seed)
    if (right := _right(text, given)) is None:
        return "dump", ""
    parts, is_divided = program.divided(given), False
    for path in paths:
        is_divided = is_divided or (number > 1 and any(each in path for each in _DIVIDED))
        until = time.monotonic() + _LIMIT / 4
        if is_divided:
            compute = partial(_parts_of, path, parts, number)
        else:
            compute = partial(_results_of, path, given)
        kind, own = _Child(compute).answer(until)
        if kind != "values":
            continue  # what can't be computed says nothing
        own = program.put_together(own) if is_divided else own
        if any(_difference(a, b) for a, b in zip(right, own, strict=True)):
            return "dump", path
    return "dump", ""


def _parts_of(path: str, given: Sequence[list[np.ndarray]], count: int) -> tuple[str, Any]:
    from harness.reduce import oracle, program_files

    return "values", oracle.parts(program_files.read(Path(path)), given, count)


def _results_of(path: str, given: Sequence[np.ndarray]) -> tuple[str, Any]:
    from harness.reduce import oracle, program_files

    return "values", oracle.results(program_files.read(Path(path)), given)


class _Compiled:
    """A module that is compiled for some devices."""

    def __init__(self, text: str, number: int, flags: Flags) -> None:
        from jaxlib import xla_client
        from jaxlib.mlir import ir

        from harness.oracles.jax_cpu import cpu_client
        from harness.oracles.replicas import compiled

        options = xla_client.CompileOptions()
        replicas, partitions = replicas_and_partitions(text)
        options.num_replicas, options.num_partitions = replicas, partitions
        options.env_option_overrides = list(flags.items())
        build = options.executable_build_options
        build.use_spmd_partitioning = partitions > 1
        build.allow_spmd_sharding_propagation_to_output = [True]
        if hasattr(build, "use_shardy_partitioner"):
            build.use_shardy_partitioner = "sdy." in text
        grid = np.arange(number).reshape(replicas, partitions)
        options.device_assignment = xla_client.DeviceAssignment.create(grid)
        client = cpu_client(number)
        self._devices = client.local_devices()[:number]
        with mlir_context():
            main = main_of(ir.Module.parse(text))
            self._inputs, self._outputs = (
                [(tuple(t.shape), str(t.element_type)) for t in map(ir.RankedTensorType, types)]
                for types in (main.type.inputs, main.type.results)
            )
        self._loaded = compiled(client, text, self._devices, options)

    def arguments(self, seed: int) -> list[np.ndarray]:
        """Return random values for the program's arguments; the seed decides them."""
        from harness.oracles.replicas import DTYPES

        chance, integers = np.random.default_rng(seed), _INTEGERS[seed % len(_INTEGERS)]
        return [
            chance.integers(*(integers if "i" in name else _FLOATS), shape).astype(DTYPES[name])
            if name != "i1"
            else chance.integers(0, 2, shape).astype(bool)
            for shape, name in self._inputs
        ]

    def results(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the whole results for whole arguments."""
        from harness.oracles.replicas import run

        return self.put_together(run(self._loaded, self._devices, self.divided(arguments)))

    def divided(self, arguments: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """Return each argument's part on each device."""
        return [
            [_part(value, tile) for tile in tiles]
            for value, tiles in zip(arguments, self.argument_tiles(arguments), strict=True)
        ]

    def put_together(self, columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Return the whole of each result's parts."""
        wholes = []
        for (shape, _), column, tiles in zip(
            self._outputs, columns, self.result_tiles(), strict=True
        ):
            result = np.zeros(shape, column[0].dtype)
            for tile, part in zip(tiles, column, strict=True):
                place = tuple(slice(start, stop) for start, stop in tile)
                result[place] = part[tuple(map(slice, result[place].shape))]
            wholes.append(result)
        return wholes

    def is_even(self, arguments: Sequence[np.ndarray]) -> bool:
        """Return whether the parts of no argument are padded."""
        return all(
            stop <= size
            for value, tiles in zip(arguments, self.argument_tiles(arguments), strict=True)
            for tile in tiles
            for size, (_, stop) in zip(value.shape, tile, strict=True)
        )

    def argument_tiles(self, arguments: Sequence[np.ndarray]) -> list[list[Tile]]:
        """Return the bounds of each argument's part on each device."""
        where = self._loaded.get_parameter_shardings() or [None] * len(arguments)
        return [
            _tiles(sharding, value.shape, len(self._devices))
            for value, sharding in zip(arguments, where, strict=True)
        ]

    def result_tiles(self) -> list[list[Tile]]:
        """Return the bounds of each result's part on each device."""
        where = self._loaded.get_output_shardings() or [None] * len(self._outputs)
        return [
            _tiles(sharding, shape, len(self._devices))
            for (shape, _), sharding in zip(self._outputs, where, strict=True)
        ]


def _tiles(sharding: Any, shape: Sequence[int], count: int) -> list[Tile]:
    """Return the bounds of each device's part; a part that is cut short is padded."""
    from jaxlib import xla_client

    of = xla_client.HloSharding.from_proto(sharding) if sharding is not None else None
    if of is None or not shape or not of.is_tiled():
        return [tuple((0, size) for size in shape)] * count
    dimensions = of.tile_assignment_dimensions()[: len(shape)]
    grid = np.array(of.tile_assignment_devices()).reshape(*dimensions, -1)
    steps = [math.ceil(size / parts) for size, parts in zip(shape, dimensions, strict=True)]
    tiles = []
    for device in range(count):
        (place, *_) = np.argwhere(grid == device)
        tiles.append(
            tuple(
                (int(n) * step, int(n) * step + step) for n, step in zip(place, steps, strict=False)
            )
        )
    return tiles


def _part(value: np.ndarray, tile: Sequence[tuple[int, int]]) -> np.ndarray:
    inside = value[tuple(slice(start, stop) for start, stop in tile)]
    padded = np.zeros([stop - start for start, stop in tile], value.dtype)
    padded[tuple(map(slice, inside.shape))] = inside
    return padded


def _difference(right: np.ndarray, own: np.ndarray) -> str:
    """Describe the first value that differs by more than rounding, "" for none."""
    if right.dtype.kind in "biu":
        wrong = right != own
    else:
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        x, y = right.astype(wide), own.astype(wide)
        largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
        wrong = ~np.isclose(y, x, rtol=_ROUNDING, atol=_ROUNDING * largest, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(map(int, np.argwhere(wrong)[0]))
    return f"{list(place)} is {own[place]}, expected {right[place]}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
