"""The plugin's functions that run programs, and what each device of a launch is given."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from harness.lanes.virtual import lapack

WAITS, RUNS, ENDED = range(3)
_TEXT = 4096


class LaunchPart(ctypes.Structure):
    """Part of a launch that one device runs; ``state`` changes meanwhile."""

    _fields_ = (
        ("executable", ctypes.c_void_p),
        ("segment", ctypes.c_void_p),
        ("index", ctypes.c_int64),
        ("launch", ctypes.c_int64),
        ("connection", ctypes.c_int64),
        ("ticket", ctypes.c_int64),
        ("hosts", ctypes.c_int64),
        ("state", ctypes.c_int64),
        ("error", ctypes.c_char * _TEXT),
    )


class TicketAnswer(ctypes.Structure):
    """The rank that one ticket of a launch is answered to, and whether that has been done."""

    _fields_ = (
        ("connection", ctypes.c_int64),
        ("ticket", ctypes.c_int64),
        ("is_sent", ctypes.c_int64),
    )


class Native:
    """A CPU client with the devices of all ranks; raises OSError without its libraries."""

    def __init__(self, devices: int) -> None:
        self._library = ctypes.CDLL(os.environ["VIRTUAL_TPU_PLUGIN"])
        self._library.virtual_tpu_why_missing.restype = ctypes.c_char_p
        if self._library.virtual_tpu_preload(os.environ["VIRTUAL_TPU_BACKEND"].encode()):
            raise OSError(self._library.virtual_tpu_why_missing().decode())
        self._library.virtual_tpu_executor_load.restype = ctypes.c_void_p
        why = ctypes.create_string_buffer(_TEXT)
        if self._library.virtual_tpu_executor_start(devices, why, _TEXT):
            raise OSError(why.value.decode())

    def load(self, content: bytes) -> int:
        """Return the loaded executable's address; raise ValueError if XLA refuses it."""
        lapack.register_for(self._library, content)
        why = ctypes.create_string_buffer(_TEXT)
        size = ctypes.c_size_t(len(content))
        address = self._library.virtual_tpu_executor_load(
            content, size, why, ctypes.c_size_t(_TEXT)
        )
        if not address:
            raise ValueError(why.value.decode())
        return int(address)

    def launch(
        self, parts: ctypes.Array[LaunchPart], answers: ctypes.Array[TicketAnswer], ended: int
    ) -> None:
        """Run all parts to their end, without waiting for it.

        If all went well then, the answers are given. After that the launch's number, 8 bytes, is
        written to the descriptor ``ended``. Both arrays must live until then.
        """
        self._library.virtual_tpu_executor_launch(parts, len(parts), answers, len(answers), ended)

    def asks_host(self, connection: int) -> bool:
        """Return whether a device waits for the host of the connection's rank."""
        return bool(self._library.virtual_tpu_executor_asks_host(ctypes.c_int64(connection)))

    def host_has_ended(self, connection: int) -> None:
        """End the waiting for a rank that has ended, with an error."""
        self._library.virtual_tpu_executor_host_has_ended(ctypes.c_int64(connection))

    def hosted(self, number: int, error: str) -> None:
        """Hand on what a rank's host has answered; ``error`` is empty if all went well."""
        self._library.virtual_tpu_executor_hosted(ctypes.c_int64(number), error.encode())


def answers(of: Sequence[tuple[int, int]]) -> ctypes.Array[TicketAnswer]:
    """Answers to come, each of the descriptor of a connection and a ticket."""
    return (TicketAnswer * len(of))(
        *(TicketAnswer(connection, ticket) for connection, ticket in of)
    )
