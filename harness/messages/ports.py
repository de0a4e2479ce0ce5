"""Addresses of this machine."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """Return a TCP port of this machine on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
