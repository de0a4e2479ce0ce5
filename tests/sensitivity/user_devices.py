"""What test_wrong_answers.py has a user test: what a plugin says of its devices and clients.

A file of its own so that it is checked as code is; pytest does not collect it by this name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

X = np.arange(8, dtype=np.float32)


def divided() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()), "x")
    return jax.device_put(X, NamedSharding(mesh, PartitionSpec("x")))


def test_where_devices_are() -> None:
    assert [device.coords[:2] for device in jax.devices()] == [[0, 0], [0, 1]] * 2


def test_slices() -> None:
    assert [device.slice_index for device in jax.devices()] == [0, 0, 1, 1]


def test_memory_of_a_result() -> None:
    assert jax.jit(jnp.sin)(X).sharding.memory_kind == "device"


def test_donated() -> None:
    x = divided()
    jax.jit(jnp.sin, donate_argnums=0)(x)
    assert x.is_deleted()


def test_each_client_discovers() -> None:
    jax.devices()
    clear_backends()
    jax.devices()
    lines = Path(os.environ["XLA_HARNESS_EVENTS"]).read_text().splitlines()
    clients = [event for line in lines if (event := json.loads(line))["event"] == "client"]
    assert [client["discovery"] for client in clients] == [True, True]


def test_that_asks_nothing_of_devices() -> None:
    np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(divided()), X * 2)
