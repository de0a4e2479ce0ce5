"""Transfers between ranks: data is copied as soon as both ends are there."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from harness.lanes.virtual import in_own_words
from harness.lanes.virtual.executor.connected_ranks import Rank, SharedSegment


@dataclass(frozen=True)
class End:
    """End of a transfer: the sender's or the receiver's.

    Attributes:
        number: the rank's own one for it.
        memory: what is sent, or where what is received goes.
        size: in bytes.
        site: the lines of Python that it comes from; "" if they are not known.
    """

    rank: Rank
    number: int
    memory: SharedSegment
    size: int
    site: str


class Transfers:
    """Ends whose other end has not come yet, by the receiver: its rank, and its number there."""

    def __init__(self) -> None:
        self._receiving: dict[tuple[int, int], End] = {}
        self._sending: dict[tuple[int, int], End] = {}
        self._newest: dict[int, int] = {}  # number that each rank has received by

    def receive(self, end: End) -> None:
        """Note that a rank waits for what another sends."""
        to = end.rank.number, end.number
        self._receiving[to] = end
        self._newest[end.rank.number] = end.number
        self._meet(to)

    def send(self, end: End, rank: int, number: int) -> None:
        """Send; the message that the other rank receives may still be on its way here."""
        if (rank, number) not in self._receiving and number <= self._newest.get(rank, 0):
            self._refuse(end, f"rank {rank}, which receives no more by that description")
            return
        self._sending[rank, number] = end
        self._meet((rank, number))

    def forget(self, rank: Rank, number: int) -> None:
        """Forget that the rank receives this."""
        self._receiving.pop((rank.number, number), None)

    def leave(self, rank: Rank) -> None:
        """Forget a rank that has ended, and refuse what is sent to it."""
        for to in [to for to in self._receiving if to[0] == rank.number]:
            del self._receiving[to]
        for to, end in list(self._sending.items()):
            if end.rank is rank:
                del self._sending[to]
            elif to[0] == rank.number:
                self._refuse(self._sending.pop(to), f"rank {rank.number}, which has ended")

    def clear(self) -> None:
        """Forget everything."""
        self._receiving.clear()
        self._sending.clear()

    def waiting(self) -> list[End]:
        """Return the receivers for which nobody has sent yet."""
        return list(self._receiving.values())

    def _meet(self, to: tuple[int, int]) -> None:
        if to not in self._receiving or to not in self._sending:
            return
        target, source = self._receiving.pop(to), self._sending.pop(to)
        if target.size != source.size:
            why = in_own_words(
                f"rank {source.rank.number} sends {source.size} bytes, and rank "
                f"{target.rank.number} receives {target.size}{_from(source)}{_from(target)}"
            )
            for end in (source, target):
                end.rank.send(f"untransferred {end.number}", why)
            return
        ctypes.memmove(target.memory.address, source.memory.address, source.size)
        for end in (target, source):
            end.rank.send(f"transferred {end.number}")

    def _refuse(self, end: End, to: str) -> None:
        """Tell a rank that what it sends nobody receives."""
        why = f"rank {end.rank.number} sends {end.size} bytes to {to}{_from(end)}"
        end.rank.send(f"untransferred {end.number}", in_own_words(why))


def _from(end: End) -> str:
    return f"\n  rank {end.rank.number} came from {end.site}" if end.site else ""
