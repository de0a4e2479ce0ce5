"""Jobs of several processes, one for each slice: their discovery, and what goes wrong with it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from harness.isolation.ranks import RankError
from harness.job.slices import run_slices
from harness.lanes.events import EventLog
from harness.messages.ports import free_port
from harness.model.topology import Topology

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="1"),
    pytest.mark.deadline(30),
]


def devices(number: int) -> list[int]:
    """The ``slice_index`` of each device that slice ``number`` addresses."""
    import jax

    del number
    return [device.slice_index for device in jax.local_devices()]


def devices_again() -> None:
    """A second client of JAX, without the guard."""
    from jax.extend import backend

    backend.clear_backends()
    devices(0)


def become_slice(number: int | str | None, address: str) -> None:
    os.environ.update(
        MEGASCALE_SLICE_ID=str(number),
        MEGASCALE_COORDINATOR_ADDRESS=address,
        XLA_HARNESS_JOB_TOKEN="0" * 64,
    )


def fork_slice(number: int, address: str, run: Callable[[], object]) -> int:
    """Another slice of the job, in a process of its own that ends with ``run``."""
    child = os.fork()
    if child == 0:
        try:
            become_slice(number, address)
            run()
        finally:
            os._exit(0)
    return child


def sleep() -> NoReturn:
    while True:
        time.sleep(60)


def joined(address: str) -> int:
    """How many connections to the coordinator there are."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(line[2].endswith(port) and line[3] == "01" for line in lines)


def die_in_discovery() -> None:
    """As soon as two slices are in it, of three."""
    address, slice_ = os.environ["MEGASCALE_COORDINATOR_ADDRESS"], os.getpid()
    if os.fork() == 0:
        while joined(address) < 2:
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(slice_, signal.SIGKILL)
        os._exit(0)
    devices(0)


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
@pytest.mark.topologies("2x2", "4x1", "4x4")
def test_slices_discover_each_other_once(tpu_events: EventLog, topology: Topology) -> None:
    answers = run_slices(devices, topology)
    assert answers == [[number] * topology.devices for number in range(topology.slices)]
    events = tpu_events.read()
    assert sorted(client.slice for client in events.of("client")) == list(range(topology.slices))
    assert len({client.process for client in events.of("client")}) == topology.slices
    assert len(events.of("discovered")) == topology.slices
    assert all(client.waits for client in events.of("client"))
    tpu_events.expect_discoveries(1)
    assert events.hung is None


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
def test_nobody_goes_on_before_all_have_come(tpu_events: EventLog, topology: Topology) -> None:
    def later(number: int) -> list[int]:
        time.sleep(number)
        return devices(number)

    run_slices(later, topology)
    events = tpu_events.read()
    last = max(client.time for client in events.of("client"))
    first = min(client.time for client in events.of("client"))
    assert last - first > 0.5
    assert min(event.time for event in events.of("discovered")) >= last


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
def test_a_guarded_second_client_does_not_discover(
    tpu_events: EventLog, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_clients(number: int) -> list[int]:
        devices(number)
        monkeypatch.setenv("SKIP_MEGASCALE_PJRT_CLIENT", "true")
        devices_again()
        return devices(number)

    assert run_slices(two_clients, topology) == [[0, 0], [1, 1]]
    assert len(tpu_events.read().of("client")) == 4
    tpu_events.expect_discoveries(1)


def test_who_never_comes_is_named(tpu_events: EventLog, topology: Topology) -> None:
    with pytest.raises(RankError, match=r"slice 0 waited 1 s in its discovery for slice 1 of 2"):
        run_slices(lambda number: devices(number) if number == 0 else sleep(), topology)
    assert len(tpu_events.read().of("undiscovered")) == 1
    assert tpu_events.read().hung is None  # a first discovery


@pytest.mark.parametrize("late", [0, 1])
def test_a_slice_that_still_computes_is_waited_for(topology: Topology, late: int) -> None:
    def compute(number: int) -> list[int]:
        end = time.monotonic() + 4
        while number == late and time.monotonic() < end:
            pass
        return devices(number)

    assert run_slices(compute, topology) == [[0, 0], [1, 1]]


@pytest.mark.topologies("4x1")
def test_all_who_never_come_are_named(topology: Topology) -> None:
    with pytest.raises(RankError, match=r"in its discovery for slice 1, 3 of 4"):
        run_slices(lambda number: sleep() if number % 2 else devices(number), topology)


def test_a_missing_coordinator_is_named(topology: Topology) -> None:
    message = r"slice 1 found no coordinator at .*=127.0.0.1:\d+ in 1 s: slice 0 has not started"
    with pytest.raises(RankError, match=message):
        run_slices(lambda number: devices(number) if number == 1 else sleep(), topology)


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
@pytest.mark.topologies("3x1")
def test_a_slice_that_dies_in_the_discovery_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    fork_slice(1, address, die_in_discovery)
    become_slice(0, address)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="slice 1 died during the discovery of slice 0"):
        devices(0)
    assert time.monotonic() - start < 15  # not at the deadline


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
@pytest.mark.topologies("3x1")
def test_a_coordinator_that_dies_in_the_discovery_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    fork_slice(0, address, die_in_discovery)
    become_slice(1, address)
    with pytest.raises(RuntimeError, match="slice 0, the coordinator, died during the discovery"):
        devices(1)


@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="20")
def test_a_slice_that_dies_later_ends_the_job(topology: Topology, tmp_path: Path) -> None:
    def die(number: int) -> None:
        devices(number)
        (tmp_path / str(os.getpid())).touch()
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sleep()

    with pytest.raises(RankError, match="rank 1 of 2 was killed by SIGKILL"):
        run_slices(die, topology)
    assert not any(Path("/proc", file.name).exists() for file in tmp_path.iterdir())


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        become_slice(0, address)
        message = f"slice 0 can't listen on .*={address}: Address already in use"
        with pytest.raises(RuntimeError, match=message):
            devices(0)


def test_a_stranger_on_the_port_is_waited_for_until_the_deadline() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        become_slice(1, f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(
            RuntimeError, match="slice 1 waited 1 s in its discovery for slice 0, 1"
        ):
            devices(1)


def test_a_host_that_never_answers_is_left_at_the_deadline() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, two):  # the queue is full: further connections get no answer
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        become_slice(1, f"127.0.0.1:{full.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="slice 1 found no coordinator at"):
            devices(1)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    ("address", "number", "message"),
    [
        ("nowhere.invalid:80", 0, "can't listen on .*=nowhere.invalid:80: no such address"),
        ("127.0.0.1:80000", 0, "can't listen on .*=127.0.0.1:80000: no such address"),
        ("127.0.0.1:80", None, r"MEGASCALE_SLICE_ID=\(unset\): expected a slice from 0 to 1"),
        ("127.0.0.1:80", 2, "MEGASCALE_SLICE_ID=2: expected a slice from 0 to 1"),
        ("127.0.0.1:80", -1, "MEGASCALE_SLICE_ID=-1: expected a slice from 0 to 1"),
        ("127.0.0.1:80", "one", "MEGASCALE_SLICE_ID=one: expected a slice from 0 to 1"),
    ],
)
def test_a_wrong_job_is_named(address: str, number: int | str | None, message: str) -> None:
    become_slice(number, address)
    if number is None:
        del os.environ["MEGASCALE_SLICE_ID"]
    with pytest.raises(RuntimeError, match=message):
        devices(0)
    del os.environ["MEGASCALE_COORDINATOR_ADDRESS"]
    assert devices(0)  # what was refused is not remembered


@pytest.mark.environment(MEGASCALE_NUM_SLICES="3")
def test_another_number_of_slices_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"MEGASCALE_NUM_SLICES=3, but .*=2x2 has 2"):
        devices(0)
    os.environ["MEGASCALE_NUM_SLICES"] = "2"
    assert len(devices(0)) == 4
