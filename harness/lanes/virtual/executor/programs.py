"""Read the collectives of a serialised CPU executable, and the ids by which they meet."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.lanes import hlo
from harness.lanes.virtual.executor import executable
from harness.lanes.virtual.host_transfers import TARGET
from harness.lanes.virtual.sites import is_users

Groups = tuple[tuple[int, ...], ...]

# Ids that the executor gives begin above those of channels, which frameworks count from 1.
_FIRST_ID = 1 << 32


@dataclass(frozen=True)
class ProgramCollective:
    """Collective of a program, as each device that takes part in it must have it.

    Attributes:
        kind: as ``all-reduce``.
        operand: type and dimensions of what each device gives, in XLA's numbers.
        reduction: as ``sum``; "" where nothing is reduced.
        groups: the devices that exchange with each other, by their index in the program.
        pairs: source and target of a collective-permute, by their places in the group.
        channel: its channel id; None for one that has none.
        name: of its instruction, for messages.
    """

    kind: str
    operand: tuple[tuple[int, tuple[int, ...]], ...]
    reduction: str
    groups: Groups
    pairs: tuple[tuple[int, int], ...]
    channel: int | None
    name: str

    @property
    def key(self) -> tuple[object, ...]:
        """Properties that must be equal on all devices of a group."""
        return self.kind, self.operand, self.reduction, self.channel

    def group_of(self, index: int) -> tuple[int, ...]:
        """Return the devices that this one exchanges with, including itself; () for none."""
        return next((group for group in self.groups if index in group), ())


class RankProgram:
    """A rank's program, read once.

    Args:
        content: the executable, as PJRT_Executable_Serialize returns it.
        devices: how many it runs on in all, over all processes.
        partitions: of each replica.
    """

    def __init__(self, content: bytes, devices: int, partitions: int) -> None:
        self.content = content
        self._devices, self._partitions = devices, partitions

    @cached_property
    def digest(self) -> bytes:
        """Equal for equal programs, and for no others."""
        sizes = f"{self._devices} {self._partitions} ".encode()
        return hashlib.sha256(sizes + self.content).digest()

    @cached_property
    def _parsed(self) -> executable.Executable:
        return executable.Executable.FromString(self.content)

    @cached_property
    def collectives(self) -> list[ProgramCollective]:
        """The program's collectives in its order; those in loops and branches appear once."""
        return [self._collective(thunk) for thunk in self._thunks()]

    @cached_property
    def exchanges(self) -> tuple[object, ...]:
        """The exchanges; equal for ranks that compiled the same, even if their digests differ."""
        return tuple((c.key, c.groups, c.pairs) for c in self.collectives)

    @property
    def summary(self) -> str:
        """The names and lines of its collectives."""
        names = dict.fromkeys(self.label(c) for c in self.collectives)
        return ", ".join(names) or "no collective"

    def label(self, collective: ProgramCollective) -> str:
        """Return the name of one of its collectives, and its line in the source if known."""
        line = self._lines.get(collective.name)
        return f"{collective.name}, {line}" if line else collective.name

    @cached_property
    def _lines(self) -> dict[str, str]:
        """The lines of its instructions, by their names."""
        module = hlo.Module.FromString(self._parsed.result.hlo_module.module)
        instructions = [i for computation in module.computations for i in computation.instructions]
        return {i.name: _line(i, module.stack_frame_index) for i in instructions}

    @cached_property
    def has_host_transfers(self) -> bool:
        """Return whether the program may send to its host or receive from it."""
        return TARGET.encode() in self.content

    @cached_property
    def decides(self) -> bool:
        """Return whether it has loops or branches, so that only a run shows what it reaches."""
        sequences = [self._parsed.result.thunk_sequence]
        decides = False
        while sequences:
            for thunk in sequences.pop().thunks:
                decides = decides or thunk.HasField("conditional") or thunk.HasField("loop")
                if thunk.HasField("call"):
                    sequences.append(thunk.call.called)
        return decides

    def meeting(self, ids: dict[tuple[Groups, int], int]) -> bytes:
        """Return the executable with ids under which collectives of different programs meet.

        XLA's CPU runtime lets collectives meet whose channel is the same, and for those without a
        channel it takes the number of the program, which no two programs share. The n-th one over
        the same groups gets the same id in all programs, as it meets on hardware.
        """
        seen: Counter[Groups] = Counter()
        for thunk, collective in zip(self._thunks(), self.collectives, strict=True):
            if collective.channel is None:
                key = collective.groups, seen[collective.groups]
                seen[collective.groups] += 1
                thunk.collective.op_params.op_id = ids.setdefault(key, _FIRST_ID + len(ids))
        return self._parsed.SerializeToString()

    def _thunks(self) -> Iterator[executable.Thunk]:
        return _collective_thunks(self._parsed.result.thunk_sequence)

    def _collective(self, thunk: executable.Thunk) -> ProgramCollective:
        collective = thunk.collective
        pairs = ((pair.source, pair.target) for pair in collective.collective_permute.pairs)
        return ProgramCollective(
            kind=_kind(collective),
            operand=tuple(
                (buffer.shape.element_type, tuple(buffer.shape.dimensions))
                for buffer in collective.op_buffers.sources
            ),
            reduction=collective.all_reduce.kind or collective.reduce_scatter.kind,
            groups=self._groups(collective),
            pairs=tuple(pairs),
            channel=collective.op_params.op_id if collective.op_params.has_channel_id else None,
            name=thunk.info.op_name,
        )

    def _groups(self, collective: executable.Collective) -> Groups:
        """https://github.com/openxla/xla/blob/main/xla/service/collective_ops_utils.h."""
        params = collective.op_params
        partitions, replicas = self._partitions, self._devices // self._partitions
        groups = [list(group.ids) for group in params.groups]
        if params.use_global_device_ids.value:
            return tuple(map(tuple, groups or [list(range(self._devices))]))
        crosses_partitions = collective.HasField("all_to_all") or collective.HasField(
            "collective_permute"
        )
        if params.has_channel_id and crosses_partitions:
            groups = groups or [list(range(partitions))]
            return tuple(
                tuple(replica * partitions + member for member in group)
                for replica in range(replicas)
                for group in groups
            )
        groups = groups or [list(range(replicas))]
        if params.has_channel_id:
            return tuple(
                tuple(member * partitions + part for member in group for part in range(partitions))
                for group in groups
            )
        return tuple(
            tuple(member * partitions + part for member in group)
            for part in range(partitions)
            for group in groups
        )


def _line(instruction: hlo.Instruction, frames: hlo.StackFrames) -> str:
    """``file:line`` of the frame that called the framework; "" if nothing is known of it.

    JAX always says it, torch_xla with XLA_IR_DEBUG=1 and XLA_HLO_DEBUG=1.
    """
    metadata = hlo.Metadata.FromString(instruction.metadata)
    number = metadata.stack_frame_id
    while number:
        frame = frames.stack_frames[number - 1]
        location = frames.file_locations[frame.file_location_id - 1]
        file = frames.file_names[location.file_name_id - 1]
        if is_users(file):
            return f"{file}:{location.line}"
        number = frame.parent_frame_id
    file = metadata.source_file.strip()
    return f"{file}:{metadata.source_line}" if file else ""


def _kind(collective: executable.Collective) -> str:
    """Return the kind of a collective: the one field that is set."""
    fields = (field.name for field, _ in collective.ListFields())
    return next((name.replace("_", "-") for name in fields if not name.startswith("op_")), "")


def _collective_thunks(sequence: executable.ThunkSequence) -> Iterator[executable.Thunk]:
    for thunk in sequence.thunks:
        if thunk.HasField("collective"):
            yield thunk
        inner = [thunk.call.called] if thunk.HasField("call") else []
        inner += list(thunk.conditional.branches) if thunk.HasField("conditional") else []
        inner += [thunk.loop.condition, thunk.loop.body] if thunk.HasField("loop") else []
        for nested in inner:
            yield from _collective_thunks(nested)
