"""JAX's CPU client with as many devices as an oracle needs, on every release of JAX.

Use it only in a case's child process: a client starts threads.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
from jaxlib import xla_client

# XLA reads XLA_FLAGS once in a process: the first client decides for those that come later.
_MOST = 16
_FLAG = "--xla_force_host_platform_device_count"


def cpu_devices(count: int) -> list[Any]:
    """JAX's CPU devices, at least `count`; raises RuntimeError if JAX started with fewer."""
    configure: Callable[[str, object], None] = jax.config.update
    configure("jax_platforms", "cpu")  # a virtual TPU is under test: the oracle is no client of it
    if hasattr(jax.config, "jax_num_cpu_devices"):
        with contextlib.suppress(RuntimeError):  # JAX has started: its number of devices is settled
            configure("jax_num_cpu_devices", count)
        devices: list[Any] = jax.devices("cpu")
    else:  # before JAX 0.5
        with _host_devices(count):
            devices = jax.devices("cpu")
    if len(devices) < count:
        raise RuntimeError(f"JAX started with {len(devices)} CPU devices; {count} are needed")
    return devices


def settle_most() -> None:
    """Have clients of jaxlib's own XLA have 16 devices or more, before XLA reads its flags at all.

    From jaxlib 0.5 on each client says how many it has, and this does nothing.
    """
    if not _takes_number():
        cpu_client(_MOST)


@cache
def cpu_client(count: int) -> Any:
    """Return a client of jaxlib's own XLA, apart from JAX's, with at least `count` devices."""
    make = xla_client.make_cpu_client
    if _takes_number():
        return make(num_devices=count)
    with _host_devices(count):  # before jaxlib 0.5
        return make()


def _takes_number() -> bool:
    return "num_devices" in inspect.signature(xla_client.make_cpu_client).parameters


@contextlib.contextmanager
def _host_devices(count: int) -> Iterator[None]:
    """XLA's flag for the number of CPU devices, out of sight of torch_xla, which reads it too."""
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {_FLAG}={max(count, _MOST)}"
    try:
        yield
    finally:
        if given is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = given
