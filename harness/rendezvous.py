"""All workers of a job start the same case together, or none of them starts it.

Before each case the first worker awaits all others, and lets them go. One that was held up, by a
case that hung there, finds the others further on, gives up the cases in between and joins them: so
a hang costs as many cases as its deadline is long, not the rest of the run.

A worker says ``at`` with a case's number and its id, or ``left`` when it gives up waiting. It is
told ``go``, ``no`` with the reason, ``late`` with the number of the case that the others are at,
``lost`` when a worker has died, after which nobody waits any more, or ``stop`` when it has other
cases than the first worker. No thread waits here: this process forks.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from harness.errors import BadInputError
from harness.isolation.evidence import Death
from harness.isolation.messages import Decoder, Message, send
from harness.job import Job
from harness.outcome import Kind

_FIRST = 10  # times the patience until all have come for the first time: a node may still start
_RETRY = 0.2  # seconds


class Rendezvous(Protocol):
    """One worker's side."""

    def meet(self, number: int, seconds: float) -> Death | None:
        """Wait at most ``seconds`` until all workers are at that case; else why it can't start.

        Raises BadInputError when a worker has other cases.
        """


class Meetings:
    """The rendezvous before each of this worker's cases, in the order in which they run."""

    def __init__(self, job: Job, cases: Sequence[str]) -> None:
        self._job = job
        self._numbers = {case: number for number, case in enumerate(cases)}
        self._rendezvous: Rendezvous | None = None
        self._cases = cases
        self._before = 0.0  # the deadline of the case before

    def before(self, case: str, deadline: float) -> Death | None:
        """Await all others at ``case``, whose own deadline is given in seconds.

        Raises BadInputError when a worker has other cases, or there is no address to meet at.
        """
        seconds = self._before + self._job.patience
        if self._rendezvous is None:
            seconds = _FIRST * self._job.patience
            first = self._job.number == 0
            end = time.monotonic() + seconds
            self._rendezvous = (
                First(self._job, self._cases) if first else Other(self._job, self._cases, end)
            )
        self._before = deadline
        return self._rendezvous.meet(self._numbers[case], seconds)


@dataclass
class _Peer:
    """Another worker, as the first one sees it."""

    socket: socket.socket
    at: int = -1
    case: str = ""
    gone: bool = False
    decoder: Decoder = field(default_factory=Decoder)

    def tell(self, message: Message) -> None:
        with suppress(OSError):  # it has died, which the next look at it will tell
            send(self.socket.fileno(), message)


class First:
    """The first worker: listens, and never lets anybody start alone."""

    def __init__(self, job: Job, cases: Sequence[str]) -> None:
        self._job, self._cases, self._digest = job, cases, _digest(cases)
        self._peers: dict[int, _Peer] = {}
        try:
            self._listener = socket.create_server(("", job.address[1]), backlog=job.count)
        except OSError as error:
            raise BadInputError(f"rendezvous at port {job.address[1]}: {error.strerror}") from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def meet(self, number: int, seconds: float) -> Death | None:
        end = time.monotonic() + seconds
        while (found := self._look(number)) is None:
            if not self._wait(end - time.monotonic()):
                found = self._never_came(number, seconds)
                break
        answer = {"no": number, "why": found.message, "kind": found.kind} if found.message else {}
        for peer in self._peers.values():
            if peer.at == number:
                peer.tell(answer or {"go": number})
                peer.at = -1
        return found if found.message else None

    def _look(self, number: int) -> Death | None:
        """What can be said without waiting: a reason against, one without a message for "go"."""
        for worker, peer in sorted(self._peers.items()):
            name = self._job.worker(worker)
            if peer.gone:
                return self._lose(name)
            if 0 <= peer.at < number:
                peer.tell({"late": number})
                peer.at = -1
            elif peer.at > number:
                return _death(Kind.HUNG, f"worker {name} has gone on to {peer.case}")
            elif peer.at == number and peer.case != self._cases[number]:
                return _death(Kind.CRASHED, f"worker {name} is at {peer.case}")
        here = sum(peer.at == number for peer in self._peers.values())
        return _death(Kind.PASSED, "") if here == self._job.count - 1 else None

    def _lose(self, name: str) -> Death:
        why = f"worker {name} is gone: its connection was lost"
        for peer in self._peers.values():
            peer.tell({"lost": why})
        return _death(Kind.CRASHED, why)

    def _never_came(self, number: int, seconds: float) -> Death:
        others = range(1, self._job.count)
        late = [n for n in others if n not in self._peers or self._peers[n].at != number]
        names = ", ".join(map(self._job.worker, late))
        return _death(
            Kind.HUNG, f"worker {names} never came to {self._cases[number]} ({seconds:g} s)"
        )

    def _wait(self, seconds: float) -> bool:
        """Read what has come; False when nothing did in time."""
        ready = self._selector.select(max(seconds, 0))
        for key, _ in ready:
            if key.data is None:
                peer = _Peer(self._listener.accept()[0])
                self._selector.register(peer.socket, selectors.EVENT_READ, peer)
            else:
                self._read(key.data)
        return bool(ready)

    def _read(self, peer: _Peer) -> None:
        for message in _received(peer.socket, peer.decoder):
            match message:
                case {"worker": int(worker), "digest": str(digest)}:
                    self._greet(peer, worker, digest)
                case {"at": int(number), "case": str(case)}:
                    peer.at, peer.case = number, case
                case {"left": _}:
                    peer.at = -1
                case _:  # its end, or no worker at all: an open port is knocked at
                    peer.gone = True
                    self._selector.unregister(peer.socket)
                    peer.socket.close()
                    return

    def _greet(self, peer: _Peer, worker: int, digest: str) -> None:
        if not 0 < worker < self._job.count:
            return
        self._peers[worker] = peer
        if digest != self._digest:
            names = self._job.worker(worker), self._job.worker(0)
            why = (
                f"worker {names[0]} has other cases than {names[1]}: expected one image and the "
                "same arguments"
            )
            for other in self._peers.values():
                other.tell({"stop": why})
            raise BadInputError(why)


class Other:
    """Any other worker."""

    def __init__(self, job: Job, cases: Sequence[str], end: float) -> None:
        self._job, self._cases = job, cases
        self._decoder = Decoder()
        self._next = 0  # the first case to come to: those before have been given up
        self._lost = ""  # why there is nobody to wait for any more
        self._socket = _connect(job.address, end)
        if self._socket is not None:
            self._tell({"worker": job.number, "digest": _digest(cases)})

    def meet(self, number: int, seconds: float) -> Death | None:
        if self._lost:
            return _death(Kind.CRASHED, self._lost)
        if number < self._next:
            return _death(Kind.HUNG, f"came late: the others are at {self._cases[self._next]}")
        self._tell({"at": number, "case": self._cases[number]})
        end = time.monotonic() + 2 * seconds  # the first worker has as long for all the others
        while self._socket is not None and (left := end - time.monotonic()) > 0 and not self._lost:
            self._socket.settimeout(left)
            for message in _received(self._socket, self._decoder):
                answer = self._understood(message, number)
                if answer is not None:
                    return answer if answer.message else None
        first = self._job.worker(0)
        if self._socket is None:
            self._lost = self._lost or f"worker {first} is gone: its connection was lost"
        if self._lost:
            return _death(Kind.CRASHED, self._lost)
        self._tell({"left": number})
        return _death(
            Kind.HUNG, f"worker {first} never came to {self._cases[number]} ({2 * seconds:g} s)"
        )

    def _understood(self, message: Message | None, number: int) -> Death | None:
        """The answer for that case; None for what answers an earlier one."""
        if message is None:
            assert self._socket is not None
            self._socket.close()
            self._socket = None
        elif "lost" in message:
            self._lost = message["lost"]
        elif "stop" in message:
            raise BadInputError(message["stop"])
        elif message.get("go") == number:
            return _death(Kind.PASSED, "")
        elif message.get("no") == number:
            return _death(Kind(message["kind"]), message["why"])
        elif message.get("late", -1) > number:
            self._next = message["late"]
            return _death(Kind.HUNG, f"came late: the others are at {self._cases[self._next]}")
        return None

    def _tell(self, message: Message) -> None:
        if self._socket is not None:
            self._socket.settimeout(None)
            with suppress(OSError):
                send(self._socket.fileno(), message)


def _connect(address: tuple[str, int], end: float) -> socket.socket | None:
    """A connection to the first worker, tried until ``end``; None without one."""
    while time.monotonic() < end:
        with suppress(OSError):
            return socket.create_connection(address, timeout=max(end - time.monotonic(), _RETRY))
        time.sleep(_RETRY)
    return None


def _received(source: socket.socket, decoder: Decoder) -> list[Message | None]:
    """What has come, None for the end; nothing at a timeout."""
    try:
        data = source.recv(1 << 16)
    except TimeoutError:
        return []
    except OSError:
        data = b""
    try:
        return [*decoder.feed(data)] if data else [None]
    except ValueError:  # no worker's words
        return [None]


def _digest(cases: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(cases).encode()).hexdigest()


def _death(kind: Kind, message: str) -> Death:
    return Death(kind, "", message, "", "")
