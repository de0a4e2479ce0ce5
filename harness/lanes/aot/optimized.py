"""Facts about an optimized program: collectives, exchanges between slices, kernels.

Read from the optimized HloModuleProto, of which libtpu makes one for each slice; all slices' are
equal. A collective inside a slice stays an HLO collective over positions in the slice. One between
slices becomes a ``send`` and a ``recv`` to the host, whose frontend attributes say what MegaScale
does with the data: https://github.com/openxla/xla/blob/main/xla/service/hlo.proto has both.
XLA's GPU compiler makes one for all slices, in which both are collectives over all devices.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from harness.lanes.aot.trip_counts import trip_count
from harness.lanes.element_bits import ELEMENT_BITS
from harness.lanes.hlo import Module
from harness.lanes.replica_groups import replica_groups

Groups = tuple[tuple[int, ...], ...]
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "reduce-scatter",
    "collective-permute",
    "collective-broadcast",
)
_MEGASCALE = "_xla_megascale_"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_KERNELS = ("tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2")
_VMEM = "1"
_TOKEN, _TUPLE = 17, 13  # of PrimitiveType in xla/xla_data.proto
_PRODUCT = re.compile(r"\{(?P<slices>[\d,]+)\}x\{(?P<first>\d+):(?P<last>\d+)\}")
_SLICE = 100_000


@dataclass(frozen=True, order=True)
class CompiledCollective:
    """Collective inside a slice.

    ``kind`` is HLO's name (``all-reduce``). ``groups`` are positions in the slice, row by row of
    its grid, wherever the program's device assignment puts its members; a permutation's are its
    (source, target) pairs; ``()`` means all in one group.
    ``bytes`` are those of its buffer on one device, the larger of what it takes and gives.
    ``count`` is how often a step executes it, ``None`` in a loop whose trip count is not known.
    ``asynchronous`` says that other work runs meanwhile; of a TPU's it is not read.
    """

    kind: str
    groups: Groups
    bytes: int
    count: int | None = 1
    asynchronous: bool = False


@dataclass(frozen=True, order=True)
class Transfer:
    """Exchange between slices: of TPUs through the hosts, of GPUs over their network.

    ``kind`` is MegaScale's (``ALL_REDUCE``). ``groups`` are devices, counted slice by slice; of a
    ``ONE_TO_ONE`` its (source, target) pairs. ``sent`` and ``received`` are bytes of one device,
    each time.
    """

    kind: str
    groups: Groups
    sent: int
    received: int
    count: int | None = 1
    asynchronous: bool = False


@dataclass(frozen=True)
class Optimized:
    """A compiled program's facts; all bytes are of one device in one step.

    ``vmem`` is what the largest kernel allocates of VMEM. ``custom_calls``, which kernels are too,
    is how many there are in the program, wherever they stand. ``results`` are the dimensions of
    what the program returns on a device, result by result. Of GPUs, ``communicators`` are the sets
    of devices that exchange something, each of which needs a communicator of NCCL, and
    ``operations`` the fusions by their kind, and the custom calls by their target.
    """

    collectives: tuple[CompiledCollective, ...]
    transfers: tuple[Transfer, ...]
    kernel_names: tuple[str, ...] = ()
    vmem: int = 0
    custom_calls: int = 0
    results: tuple[tuple[int, ...], ...] = ()
    communicators: Groups = ()
    operations: tuple[str, ...] = ()

    @property
    def kernels(self) -> int:
        """Number of kernels in the program."""
        return len(self.kernel_names)

    @cached_property
    def bytes_inside(self) -> int:
        """Bytes of the collectives inside a slice; a loop of unknown length counts once."""
        return sum(c.bytes * _times(c.count) for c in self.collectives)

    @cached_property
    def bytes_across(self) -> int:
        """Sent to other slices; a loop of unknown length counts once."""
        return sum(t.sent * _times(t.count) for t in self.transfers)

    @property
    def kinds(self) -> Counter[str]:
        """Number of collectives of each kind inside a slice."""
        return Counter(c.kind for c in self.collectives)

    @property
    def kinds_across(self) -> Counter[str]:
        """Number of exchanges of each kind between slices."""
        return Counter(t.kind for t in self.transfers)


def read(module: bytes, devices: int, *, whole: bool = False) -> Optimized:
    """Return the facts of a serialised, optimized HloModuleProto for slices of ``devices``.

    ``whole`` says that the module is one for all slices.
    """
    program = Module.FromString(module)
    computations = {c.id: c for c in program.computations}
    counts = _executions(program.entry_computation_id, computations)
    places = _places(program)
    everyone, wrappers = _sorted(places), _wrappers(program)
    collectives: list[CompiledCollective] = []
    transfers: list[Transfer] = []
    communicators: set[tuple[int, ...]] = set()
    kernels, operations, vmem, custom_calls = [], [], 0, 0
    halves: dict[str, dict[str, Any]] = defaultdict(dict)
    for number, count in counts.items():
        computation = computations[number]
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            kind = instruction.opcode.removesuffix("-start")
            if kind in _COLLECTIVES:
                groups = _groups(instruction, places)
                exchange = Transfer(kind, groups, *_amounts(kind, instruction, shapes), count)
                if whole:
                    exchange = replace(
                        exchange,
                        groups=groups or (everyone,),
                        asynchronous=_is_asynchronous(wrappers.get(number, instruction)),
                    )
                    pairs = kind == "collective-permute"
                    communicators |= {everyone} if pairs else {*map(_sorted, exchange.groups)}
                part = _inside_or_across(exchange, devices if whole else None)
                if isinstance(part, Transfer):
                    transfers.append(part)
                else:
                    collectives.append(part)
            elif instruction.opcode in ("send", "recv") and instruction.is_host_transfer:
                attributes = _attributes(instruction)
                half = halves[attributes.get(_RENDEZVOUS, instruction.name)]
                half.update(attributes, count=count)
                half[instruction.opcode] = _bytes(instruction.shape.tuple_shapes[0])
            elif instruction.opcode == "custom-call":
                custom_calls += 1
                operations.append(instruction.custom_call_target)
                if instruction.custom_call_target in _KERNELS:
                    kernels.append(instruction.name)
                    vmem = max(vmem, _vmem(instruction))
            elif instruction.opcode == "fusion":
                operations.append(f"fusion {_fusion_kind(instruction)}")
    transfers += [_transfer(half, devices) for half in halves.values()]
    return Optimized(
        tuple(sorted(collectives, key=str)),
        tuple(sorted(transfers, key=str)),
        tuple(sorted(kernels)),
        vmem,
        custom_calls,
        results(program),
        tuple(sorted(communicators)),
        tuple(sorted(operations)) if whole else (),
    )


def results(program: Any) -> tuple[tuple[int, ...], ...]:
    """Return the dimensions of each result that a program, an HloModuleProto, has on a device."""
    entry = next(c for c in program.computations if c.id == program.entry_computation_id)
    (shape,) = (i.shape for i in entry.instructions if i.id == entry.root_id)
    parts = shape.tuple_shapes if shape.element_type == _TUPLE else [shape]
    return tuple(tuple(part.dimensions) for part in parts)


def _executions(entry: int, computations: dict[int, Any]) -> dict[int, int | None]:
    """Return how often a step executes each computation that it reaches; None if unknown."""
    counts: dict[int, int | None] = {}

    def visit(number: int, times: int | None) -> None:
        before = counts.get(number, 0)
        counts[number] = None if times is None or before is None else before + times
        for instruction in computations[number].instructions:
            inner = times
            if instruction.opcode == "while":
                trips = trip_count(instruction, computations[number], computations)
                inner = None if times is None or trips is None else times * trips
            for called in instruction.called_computation_ids:
                visit(called, inner)

    visit(entry, 1)
    return counts


def _times(count: int | None) -> int:
    return 1 if count is None else count


def _vmem(kernel: Any) -> int:
    try:
        used = json.loads(kernel.backend_config)["used_scoped_memory_configs"]
    except (ValueError, KeyError):
        return 0
    return sum(int(buffer["size"]) for buffer in used if buffer["memory_space"] == _VMEM)


def _places(program: Any) -> list[int]:
    """Return the position in the slice of each member of the program, a replica or a partition.

    torch_tpu assigns devices in the order of a process group's ranks, and numbers groups by it.
    """
    partitions = program.device_assignment.partitions
    return [device for partition in partitions for device in partition.replica_device_ids]


def _sorted(group: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(group))


def _wrappers(program: Any) -> dict[int, Any]:
    """Return the instruction that starts each computation which runs asynchronously, by its id."""
    instructions = (i for computation in program.computations for i in computation.instructions)
    starts = (i for i in instructions if i.opcode == "async-start")
    return {called: start for start in starts for called in start.called_computation_ids}


def _is_asynchronous(start: Any) -> bool:
    """Return whether XLA's GPU compiler has left a collective that starts one asynchronous."""
    config = _config(start).get("collective_backend_config", {})
    return start.opcode.endswith("-start") and not config.get("is_sync", False)


def _fusion_kind(fusion: Any) -> str:
    """Return XLA's kind of a fusion, or how the GPU compiler implements a custom one."""
    kind: str = _config(fusion).get("fusion_backend_config", {}).get("kind", "")
    return kind or fusion.fusion_kind


def _config(instruction: Any) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(instruction.backend_config)
    except ValueError:
        return {}
    return config


def _inside_or_across(exchange: Transfer, devices: int | None) -> CompiledCollective | Transfer:
    """Return an exchange as one inside a slice of ``devices`` if none of its groups leaves it."""
    kind, groups = exchange.kind, exchange.groups
    if devices:
        if any(len({member // devices for member in group}) > 1 for group in groups):
            named = "ONE_TO_ONE" if kind == "collective-permute" else kind.upper().replace("-", "_")
            return replace(exchange, kind=named)
        groups = tuple(
            dict.fromkeys(tuple(member % devices for member in group) for group in groups)
        )
    larger = max(exchange.sent, exchange.received)
    return CompiledCollective(kind, groups, larger, exchange.count, exchange.asynchronous)


def _amounts(kind: str, instruction: Any, shapes: dict[int, Any]) -> tuple[int, int]:
    """Return the bytes that a collective takes and gives on one device."""
    taken = sum(_bytes(shapes[operand]) for operand in instruction.operand_ids)
    if not instruction.opcode.endswith("-start"):
        return taken, _bytes(instruction.shape)
    if kind == "all-reduce":
        return taken, taken
    return taken, _bytes(instruction.shape.tuple_shapes[1])  # after the operands


def _groups(instruction: Any, places: list[int]) -> Groups:
    pairs = [[pair.source, pair.target] for pair in instruction.source_target_pairs]
    groups = pairs or replica_groups(instruction)
    return tuple(
        tuple(places[member] if places else member for member in group) for group in groups
    )


def _transfer(half: dict[str, Any], devices: int) -> Transfer:
    return Transfer(
        kind=half.get(f"{_MEGASCALE}transfer_type", "HOST"),
        groups=_targets(half.get(f"{_MEGASCALE}target", ""), devices),
        sent=half.get("send", 0),
        received=half.get("recv", 0),
        count=half["count"],
    )


def _targets(text: str, devices: int) -> Groups:
    """Parse ``{1,2}x{0:3}``, devices 0 to 3 of slices 1 and 2, or ``{{100000,200000}, ...}``.

    Slices count from 1, and a device's id is its slice times 100000 and its place there.
    """
    if product := _PRODUCT.fullmatch(text):
        slices = [int(number) - 1 for number in product["slices"].split(",")]
        places = range(int(product["first"]), int(product["last"]) + 1)
        return tuple(tuple(s * devices + place for s in slices) for place in places)
    groups = (re.findall(r"\d+", group) for group in re.findall(r"\{[\d>,-]+\}", text))
    ids = [tuple(divmod(int(number), _SLICE) for number in group) for group in groups]
    return tuple(tuple((s - 1) * devices + place for s, place in group) for group in ids)


def _attributes(instruction: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in instruction.frontend_attributes.map}


def _bytes(shape: Any) -> int:
    if shape.element_type == _TUPLE:
        return sum(map(_bytes, shape.tuple_shapes))
    if shape.element_type == _TOKEN:
        return 0
    elements: int = math.prod(shape.dimensions)
    return elements * ELEMENT_BITS[shape.element_type] // 8
