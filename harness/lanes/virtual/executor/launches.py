"""Runs the programs of ranks that have met, each on its own devices."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from harness.lanes.virtual.executor import native
from harness.lanes.virtual.executor.connected_ranks import Execution, Rank
from harness.lanes.virtual.executor.programs import Groups, RankProgram


@dataclass(frozen=True, eq=False)
class Launch:
    """Executions that run together, one part a device, in the order of ``devices``.

    Each execution has an answer, which its rank has got when ``is_sent`` is set.
    """

    number: int
    executions: Sequence[Execution]
    devices: tuple[int, ...]
    parts: ctypes.Array[native.LaunchPart]
    answers: ctypes.Array[native.TicketAnswer]

    @property
    def ended(self) -> list[int]:
        """Devices that have come to the end of their program."""
        pairs = zip(self.devices, self.parts, strict=True)
        return [device for device, part in pairs if part.state == native.ENDED]

    @property
    def error(self) -> str:
        """The error of the first device that has ended with one; "" if none has."""
        return self._errors.get(self.failed, "")

    @property
    def failed(self) -> int:
        """The place in ``devices`` of the first one that has ended with an error; -1 for none."""
        return min(self._errors, default=-1)

    @property
    def _errors(self) -> dict[int, str]:
        texts = (p.error.decode(errors="replace") if _has_ended(p) else "" for p in self.parts)
        return {index: text for index, text in enumerate(texts) if text}


class Launcher:
    """Has the client that runs all programs; raises OSError when there can be none."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self._native = native.Native(devices)
        self._loaded: dict[bytes, int] = {}
        self._ids: dict[tuple[Groups, int], int] = {}
        self._launches = 0

    def prepare(self, executions: Sequence[Execution]) -> Launch:
        """Prepare a launch of executions that have met; raise ValueError if XLA refuses one."""
        devices = executions[0].devices
        of = {
            device: (execution, index)
            for execution in executions
            for device, index in execution.parts()
        }
        self._launches += 1
        parts = (native.LaunchPart * len(devices))()
        for part, (execution, index) in zip(parts, map(of.__getitem__, devices), strict=True):
            part.executable, part.segment = self._load(execution.program), execution.memory.address
            part.index, part.launch = index, self._launches
            part.connection, part.ticket = execution.rank.connection.fileno(), execution.ticket
            part.hosts = execution.program.has_host_transfers
        answers = native.answers(
            [(execution.rank.connection.fileno(), execution.ticket) for execution in executions]
        )
        return Launch(self._launches, executions, devices, parts, answers)

    def start(self, launch: Launch, ended: int) -> None:
        """Start all devices, which may never end; their ranks hear of a good end at once.

        Then the launch's number is written to the descriptor ``ended``.
        """
        self._native.launch(launch.parts, launch.answers, ended)

    def hosted(self, number: int, error: str) -> None:
        """Hand on what a rank's host has answered to a device that waits for it."""
        self._native.hosted(number, error)

    def asks_host(self, rank: Rank) -> bool:
        """Return whether a device waits for what this rank's host takes or brings."""
        return self._native.asks_host(rank.connection.fileno())

    def host_has_ended(self, rank: Rank) -> None:
        """Fail what waits for this rank's host, since the rank has ended."""
        self._native.host_has_ended(rank.connection.fileno())

    def _load(self, program: RankProgram) -> int:
        if program.digest not in self._loaded:
            self._loaded[program.digest] = self._native.load(program.meeting(self._ids))
        return self._loaded[program.digest]


def _has_ended(part: native.LaunchPart) -> bool:
    return bool(part.state == native.ENDED)
