"""Who asked the virtual TPU for what: real clients, compilations and executions, counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies("2x2")]

GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"


def use_jax(size: int = 2) -> float:
    import jax
    import jax.numpy as jnp

    return float(jax.jit(lambda x: jnp.sin(x).sum())(jnp.ones(size)))


def use_torch_xla(size: int = 2) -> float:
    import torch
    import torch_xla

    return float(torch.ones(size, device=torch_xla.device()).sin().sum().cpu())


USES = {"jax": use_jax, "torch_xla": use_torch_xla}


def counts(log: EventLog, by: str) -> tuple[int, int, int]:
    events = log.read()
    numbers = tuple(len(events.of(kind, by=by)) for kind in ("client", "compile", "execute"))
    return numbers[0], numbers[1], numbers[2]


@pytest.mark.parametrize("by", USES)
def test_each_library_is_counted_by_itself(tpu_events: EventLog, by: str) -> None:
    USES[by]()
    other = next(name for name in USES if name != by)
    clients, compilations, executions = counts(tpu_events, by)
    assert clients == 1
    assert compilations > 0
    assert executions > 0
    assert counts(tpu_events, other) == (0, 0, 0)
    earlier = tpu_events.read()
    USES[by]()  # the same program again: each library has it compiled
    later = tpu_events.read().after(earlier)
    assert not later.of("client")
    assert not later.of("compile") or by == "jax"  # a new lambda is a new program to JAX
    assert later.of("execute", by=by)
    USES[by](3)
    assert tpu_events.read().after(earlier).of("compile", by=by)


def test_an_execution_says_on_how_many_devices(tpu_events: EventLog, topology: Topology) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    x = jax.device_put(np.ones(8, np.float32), sharding)
    before = tpu_events.read()
    step = jax.jit(lambda x: x + 1)
    step(x)
    once = tpu_events.read().after(before)
    assert len(once.of("compile")) == 1
    # JAX calls each device's part by itself, or all at once.
    assert sum(event.devices for event in once.of("execute")) == topology.total
    step(x)
    assert len(tpu_events.read().after(before).of("compile")) == 1


def test_equal_programs_have_equal_fingerprints(tpu_events: EventLog) -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.ones(5)
    before = tpu_events.read()
    for factor in (3, 3, 4):  # on one line, since a program says where it comes from
        jax.jit(lambda x, factor=factor: x * factor)(x)
    first, second, third = tpu_events.read().after(before).of("compile", by="jax")
    assert first.fingerprint == second.fingerprint != third.fingerprint


@pytest.mark.parametrize("guard", [None, "", "true", "false", "1"])
def test_a_client_says_the_guards_value(
    tpu_events: EventLog, monkeypatch: pytest.MonkeyPatch, guard: str | None
) -> None:
    if guard is not None:
        monkeypatch.setenv(GUARD, guard)
    use_jax()
    (client,) = tpu_events.read().of("client")
    assert client.guard == guard
    assert client.discovery == (guard != "true")
    assert client.process == os.getpid()


@pytest.mark.topologies("1x2", "2x2")
def test_one_slice_has_nothing_to_discover(tpu_events: EventLog, topology: Topology) -> None:
    use_jax()
    assert len(tpu_events.read().discoveries) == (topology.slices > 1)


def test_two_unguarded_clients_are_two_discoveries(tpu_events: EventLog) -> None:
    use_torch_xla()
    use_jax()
    assert [event.by for event in tpu_events.read().discoveries] == ["torch_xla", "jax"]
    tpu_events.expect_discoveries(2)
    with pytest.raises(AssertionError) as raised:
        tpu_events.expect_discoveries(1)
    message = str(raised.value)
    assert message.startswith("2 discoveries, expected 1\n1. by torch_xla in process")
    assert f"2. by jax in process {os.getpid()}, {GUARD}=None:" in message
    assert message.count("in use_torch_xla") == message.count("in use_jax") == 1
    assert "/_pytest/" not in message


@pytest.mark.environment(XLA_HARNESS_STACKS="compile,execute")
def test_stacks_of_compilations_and_executions_on_request(tpu_events: EventLog) -> None:
    use_jax()
    events = tpu_events.read()
    for event in events.of("compile") + events.of("execute"):
        assert "in use_jax" in (event.stack or "")


@pytest.mark.environment(XLA_HARNESS_STACKS=None)
def test_no_stacks_of_compilations_and_executions_else(tpu_events: EventLog) -> None:
    use_jax()
    events = tpu_events.read()
    assert {event.stack for event in events.of("compile") + events.of("execute")} == {None}


DIES = """
import os, sys, ctypes, signal
from harness.lanes.virtual import process
import jax, jax.numpy as jnp
x = jnp.ones(3)
print(float(jax.jit(lambda x: (x + 41).sum())(x)), flush=True)
{end}
"""
ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
}


@pytest.mark.parametrize("end", ENDS)
def test_counts_survive_the_process(tpu_events: EventLog, end: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES.format(end=ENDS[end])],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == -signal.Signals[end]
    assert done.stdout == "126.0\n"
    events = tpu_events.read()
    (client,) = events.of("client", by="jax")
    assert client.process != os.getpid()
    assert events.of("compile", by="jax")
    assert events.of("execute", by="jax")
    assert len(events.discoveries) == 1


@pytest.mark.long
def test_spawned_processes_add_up(tpu_events: EventLog) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_spawned, nprocs=2)
    use_jax()
    clients = tpu_events.read().of("client")
    assert len(clients) == len({client.process for client in clients}) == 3


def _spawned(number: int) -> None:
    use_jax(number)


def test_forked_processes_add_up(tpu_events: EventLog) -> None:
    children = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            use_jax()
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    clients = tpu_events.read().of("client", by="jax")
    assert {client.process for client in clients} == set(children)


def test_half_a_line_is_no_event(tpu_events: EventLog) -> None:
    use_jax()
    whole = tpu_events.read()
    path = Path(os.environ["XLA_HARNESS_EVENTS"])
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab", buffering=0) as file:
        file.write(line[:24])
        assert tpu_events.read() == whole
        file.write(line[24:])
    assert len(tpu_events.read().all) == len(whole.all) + 1
