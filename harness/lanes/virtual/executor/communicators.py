"""The sets of devices of a job that exchange something: on GPUs, each is a communicator of NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from harness.lanes import events
from harness.lanes.virtual.executor.programs import RankProgram


class Communicators:
    """Notes each set of devices once, before their first exchange: then NCCL connects them."""

    def __init__(self) -> None:
        self._started: set[tuple[tuple[int, ...], bytes]] = set()
        self._members: set[frozenset[int]] = set()

    def start(self, devices: Sequence[int], program: RankProgram) -> None:
        """Note the sets that a program on these devices is the first to need.

        XLA connects the devices of all collectives in a program before it runs, those in branches,
        too: https://github.com/openxla/xla/blob/main/xla/backends/gpu/runtime/collective_thunk.h
        """
        if (run := (tuple(devices), program.digest)) in self._started:
            return
        self._started.add(run)
        for members in _sets(devices, program):
            if len(members) > 1 and members not in self._members:
                self._members.add(members)
                with suppress(OSError):  # noted as a loss
                    events.note("communicator", {"devices": sorted(members)})


def _sets(devices: Sequence[int], program: RankProgram) -> Iterator[frozenset[int]]:
    for collective in program.collectives:
        for group in collective.groups:
            yield frozenset(devices[index] for index in group)
