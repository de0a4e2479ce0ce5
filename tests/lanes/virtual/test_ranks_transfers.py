"""What ranks send to each other, as the job's executor sees it.

The plugin's own tests in C send and receive through it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator

import pytest

from harness.lanes.virtual.executor.connected_ranks import Rank, SharedSegment
from harness.lanes.virtual.executor.diagnosis import Diagnosis
from harness.lanes.virtual.executor.meeting_history import MeetingHistory
from harness.lanes.virtual.executor.transfers import End, Transfers

SIZE = 8


class Told:
    """A rank, and what it is told."""

    def __init__(self, number: int) -> None:
        here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._there.setblocking(False)
        self.rank = Rank(here, number, os.getpid(), (number,))

    def end(self, number: int, content: bytes, site: str = "") -> End:
        """An end with a number of its own, whose memory has that content."""
        file = os.memfd_create("end")
        os.write(file, content.ljust(SIZE, b"\0"))
        memory = SharedSegment(file, SIZE)
        os.close(file)
        return End(self.rank, number, memory, len(content), site)

    def hears(self) -> list[str]:
        """What it has been told since the last time."""
        lines = []
        while True:
            try:
                lines.append(self._there.recv(4096).decode().rstrip("\n"))
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self.rank.connection.close()
        self._there.close()


@pytest.fixture
def ranks() -> Iterator[list[Told]]:
    tellers = [Told(number) for number in range(3)]
    yield tellers
    for rank in tellers:
        rank.close()


def content(end: End) -> bytes:
    return ctypes.string_at(end.memory.address, end.size)


@pytest.mark.parametrize("first", ["receiver", "sender"])
def test_both_ends_meet_in_any_order(ranks: list[Told], first: str) -> None:
    transfers = Transfers()
    source, target = ranks[0].end(5, b"12345678"), ranks[1].end(7, b"\0" * 8)
    if first == "receiver":
        transfers.receive(target)
        assert transfers.waiting() == [target]
        transfers.send(source, 1, 7)
    else:
        transfers.send(source, 1, 7)
        assert not ranks[0].hears()
        transfers.receive(target)
    assert content(target) == b"12345678"
    assert (ranks[0].hears(), ranks[1].hears()) == (["transferred 5"], ["transferred 7"])
    assert not transfers.waiting()


def test_each_goes_to_its_own_place(ranks: list[Told]) -> None:
    transfers = Transfers()
    targets = {(rank, 1): ranks[rank].end(1, b"    ") for rank in (1, 2)}
    for target in targets.values():
        transfers.receive(target)
    transfers.send(ranks[0].end(1, b"to 2"), 2, 1)
    transfers.send(ranks[0].end(2, b"to 1"), 1, 1)
    assert [content(target) for target in targets.values()] == [b"to 1", b"to 2"]


def test_sizes_that_differ(ranks: list[Told]) -> None:
    transfers = Transfers()
    target = ranks[1].end(7, b"\0" * 8, "b.py:2")
    transfers.receive(target)
    transfers.send(ranks[0].end(5, b"123", "a.py:1"), 1, 7)
    why = (
        "virtual TPU: rank 0 sends 3 bytes, and rank 1 receives 8\n"
        "  rank 0 came from a.py:1\n  rank 1 came from b.py:2"
    )
    assert (ranks[0].hears(), ranks[1].hears()) == (
        [f"untransferred 5\n{why}"],
        [f"untransferred 7\n{why}"],
    )
    assert content(target) == b"\0" * 8


def test_what_nobody_receives(ranks: list[Told]) -> None:
    transfers = Transfers()
    transfers.receive(ranks[1].end(7, b"1"))
    transfers.forget(ranks[1].rank, 7)
    transfers.send(ranks[0].end(5, b"1"), 1, 7)  # it was there, and is no more
    transfers.send(ranks[0].end(6, b"1"), 1, 9)  # it may still come
    transfers.send(ranks[2].end(1, b"1"), 1, 10)
    why = "rank 0 sends 1 bytes to rank 1, which receives no more by that description"
    assert ranks[0].hears() == [f"untransferred 5\nvirtual TPU: {why}"]
    transfers.leave(ranks[2].rank)
    transfers.leave(ranks[1].rank)
    assert ranks[0].hears() == [
        "untransferred 6\nvirtual TPU: rank 0 sends 1 bytes to rank 1, which has ended"
    ]
    assert not ranks[2].hears()


def test_nobody_waits_for_a_rank_that_has_ended(ranks: list[Told]) -> None:
    transfers = Transfers()
    for rank in ranks[1:]:
        transfers.receive(rank.end(1, b"1"))
    transfers.leave(ranks[1].rank)
    assert [end.rank.number for end in transfers.waiting()] == [2]
    transfers.clear()
    assert not transfers.waiting()


def test_a_late_receiver_is_named(ranks: list[Told]) -> None:
    waiting = [ranks[1].end(1, b"1234", "train.py:7"), ranks[2].end(1, b"1")]
    rank = {rank.rank.number: rank.rank for rank in ranks}
    assert Diagnosis(rank, {}, [], MeetingHistory(), waiting).absent([], 20).reason == (
        "virtual TPU: the job can't go on: "
        "ranks 1, 2 wait for what nobody has sent, for 20 s\n"
        "rank 1 receives 4 bytes that nobody has sent\n"
        "  rank 1 came from train.py:7\n"
        "rank 2 receives 1 bytes that nobody has sent"
    )
