"""A program, compiled by XLA for CPUs, which executes it, or by a vendor for its devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.model.topology import Topology
from harness.reduce.stablehlo import main_of, mlir_context, replicas_and_partitions

Flags = Mapping[str, object]
# The start and the end of each dimension; or a replica, whose values stand after each other.
Tile = tuple[tuple[int, int], ...] | int
_FLOATS = (-4, 5)  # sums of so small numbers are not rounded
_INTEGERS = ((0, 13), (0, 4), (-8, 9), (0, 64))  # indices within arrays, and beyond


@dataclass(frozen=True)
class Size:
    """What a compiled program needs of each device, in bytes."""

    memory: int  # of temporaries
    exchanged: int  # by collectives, each time they run


class OnlyCompiled:
    """A module that a vendor's compiler compiles for its devices, of which there are none here."""

    def __init__(self, text: str, topology: Topology, flags: Flags) -> None:
        from jaxlib.mlir import ir

        from harness.lanes.aot.compiler import compiled
        from harness.lanes.aot.vendor import vendor_for

        replicas, partitions = replicas_and_partitions(text)
        self._vendor, self._topology = vendor_for(topology), topology
        devices = self._vendor.devices(topology)[: replicas * partitions]
        options = _options(text, devices, {**self._vendor.OPTIONS, **flags})
        with mlir_context():
            self._compiled = compiled(ir.Module.parse(text), devices, options)

    @property
    def text(self) -> str:
        """The compiled program as HLO."""
        return _text(self._compiled)

    @property
    def size(self) -> Size:
        """What the compiled program needs."""
        (module, *_) = self._compiled.hlo_modules()
        program = module.as_serialized_hlo_module_proto()
        return _size(self._compiled, self._vendor.read(program, self._topology))


def _options(text: str, devices: Sequence[Any], flags: Flags) -> Any:
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    replicas, partitions = replicas_and_partitions(text)
    options.num_replicas, options.num_partitions = replicas, partitions
    options.env_option_overrides = list(flags.items())
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = replicas, partitions
    build.use_spmd_partitioning = partitions > 1
    build.allow_spmd_sharding_propagation_to_output = [True]
    if hasattr(build, "use_shardy_partitioner"):
        build.use_shardy_partitioner = "sdy." in text
    ids = np.array([device.id for device in devices]).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    build.device_assignment = options.device_assignment
    return options


def _text(compiled: Any) -> str:
    (module, *_) = compiled.hlo_modules()
    return str(module.to_string())


def _size(compiled: Any, facts: Any) -> Size:
    memory = compiled.get_compiled_memory_stats().temp_size_in_bytes
    return Size(memory, facts.bytes_inside + facts.bytes_across)


class Executed:
    """A module that XLA compiles for CPUs, and executes there."""

    def __init__(self, text: str, number: int, flags: Flags) -> None:
        from jaxlib.mlir import ir

        from harness.oracles.jax_cpu import cpu_client
        from harness.oracles.replicas import compiled

        client = cpu_client(number)
        self._devices = client.local_devices()[:number]
        self._replicas = (number,) if replicas_and_partitions(text)[1] == 1 < number else ()
        with mlir_context():
            main = main_of(ir.Module.parse(text))
            self._inputs, self._outputs = (
                [
                    ((*self._replicas, *t.shape), str(t.element_type))
                    for t in map(ir.RankedTensorType, types)
                ]
                for types in (main.type.inputs, main.type.results)
            )
        self._loaded = compiled(client, text, self._devices, _options(text, self._devices, flags))

    @property
    def text(self) -> str:
        """The compiled program as HLO."""
        return _text(self._loaded)

    @property
    def size(self) -> Size:
        """What the compiled program needs."""
        from harness.lanes.aot import optimized

        (module, *_) = self._loaded.hlo_modules()
        program = module.as_serialized_hlo_module_proto()
        facts = optimized.read(program, len(self._devices), whole=True)
        return _size(self._loaded, facts)

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
                place = _place(tile)
                result[place] = part[tuple(map(slice, result[place].shape))]
            wholes.append(result)
        return wholes

    def is_even(self, arguments: Sequence[np.ndarray]) -> bool:
        """Return whether the parts of no argument are padded."""
        return all(
            isinstance(tile, int)
            or all(stop <= size for size, (_, stop) in zip(value.shape, tile, strict=True))
            for value, tiles in zip(arguments, self.argument_tiles(arguments), strict=True)
            for tile in tiles
        )

    def argument_tiles(self, arguments: Sequence[np.ndarray]) -> list[list[Tile]]:
        """Return the bounds of each argument's part on each device."""
        if self._replicas:
            return [list(range(*self._replicas))] * len(arguments)
        where = self._loaded.get_parameter_shardings() or [None] * len(arguments)
        return [
            _tiles(sharding, value.shape, len(self._devices))
            for value, sharding in zip(arguments, where, strict=True)
        ]

    def result_tiles(self) -> list[list[Tile]]:
        """Return the bounds of each result's part on each device."""
        if self._replicas:
            return [list(range(*self._replicas))] * len(self._outputs)
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
    tiles: list[Tile] = []
    for device in range(count):
        (place, *_) = np.argwhere(grid == device)
        tiles.append(
            tuple(
                (int(n) * step, int(n) * step + step) for n, step in zip(place, steps, strict=False)
            )
        )
    return tiles


def _place(tile: Tile) -> Any:
    return tile if isinstance(tile, int) else tuple(slice(start, stop) for start, stop in tile)


def _part(value: np.ndarray, tile: Tile) -> np.ndarray:
    inside: np.ndarray = value[_place(tile)]
    if isinstance(tile, int):
        return inside
    padded = np.zeros([stop - start for start, stop in tile], value.dtype)
    padded[tuple(map(slice, inside.shape))] = inside
    return padded
