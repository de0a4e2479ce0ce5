"""Connections that have not shown the job's token yet: few, for a short time, and of this user."""

from __future__ import annotations

import errno
import os
import resource
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_MOST = 64  # at once
_SHARE = 16  # of all descriptors that this process may have, one in so many at the most
_SECONDS = 2.0  # that each has to show the token
_IN_A_ROW = 64  # accepted before the ranks are heard again
_PEER = struct.Struct("3i")  # process, user, group
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class _Stranger:
    """Who holds a connection, and until when it may."""

    pid: int
    until: float


class Strangers:
    """Accepts connections and keeps each until it has shown the token, or is in the way.

    Another user's are closed at once. One more than there is room for takes the place of the oldest
    one of the process that holds most of them, so a rank, which holds one, keeps it.

    Args:
        listening: a bound socket.
        selector: reports what comes on the connections.
    """

    def __init__(self, listening: socket.socket, selector: selectors.BaseSelector) -> None:
        listening.setblocking(False)
        self._listening, self._selector = listening, selector
        self._waiting: dict[socket.socket, _Stranger] = {}  # the oldest first
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit // _SHARE)
        self._spare = os.open(os.devnull, os.O_RDONLY)  # given up for one that must be closed

    def __contains__(self, connection: socket.socket) -> bool:
        return connection in self._waiting

    def accept(self) -> Iterator[socket.socket]:
        """Yield each new connection, whose token may be there by now."""
        for _ in range(_IN_A_ROW):
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:  # all have been accepted
                    return
                self._free_descriptor()
                continue
            if self._keep(connection):
                yield connection

    def admit(self, connection: socket.socket) -> int:
        """Return the process of a connection that has shown the token, and is none of these now."""
        return self._waiting.pop(connection).pid

    def drop(self, connection: socket.socket) -> None:
        """Close a stranger's connection."""
        del self._waiting[connection]
        self._selector.unregister(connection)
        connection.close()

    def drop_late(self) -> None:
        """Close the connections whose time is over."""
        now = time.monotonic()
        for connection in [
            connection for connection, who in self._waiting.items() if who.until <= now
        ]:
            self.drop(connection)

    def _keep(self, connection: socket.socket) -> bool:
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, user, _ = _PEER.unpack(peer)
        if user != os.getuid():
            connection.close()
            return False
        if len(self._waiting) >= self._most:
            self._drop_one()
        connection.setblocking(False)
        self._waiting[connection] = _Stranger(pid, time.monotonic() + _SECONDS)
        self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _drop_one(self) -> None:
        ((pid, _),) = Counter(who.pid for who in self._waiting.values()).most_common(1)
        self.drop(next(connection for connection, who in self._waiting.items() if who.pid == pid))

    def _free_descriptor(self) -> None:
        """Make room for a connection; where no stranger has any, refuse the one that waits."""
        if self._waiting:
            self._drop_one()
            return
        os.close(self._spare)
        try:
            self._listening.accept()[0].close()
        except OSError:  # another process of this machine was faster, or it has gone
            pass
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)
