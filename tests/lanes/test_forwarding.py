"""The plugin in front of another PJRT library: what it counts, and that it changes nothing.

Behind it stands a second copy of the plugin, compiled under other names, with a log of its own, of
what really arrived. OpenXLA's CPU plugin and the real libtpu are forwarded to as they are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.commands import run_program
from support.project import OURS

from harness.lanes.aot.libtpu import ENVIRONMENT
from harness.lanes.events import EventLog, Events
from harness.lanes.virtual import library
from harness.lanes.virtual.plugin import build
from harness.model.topology import Topology
from harness.platforms.tpu import TPU, libtpu_file

TORCH = """
import torch, torch_xla
import torch_xla.runtime as xr
x = torch.arange(9.).reshape(3, 3).to(torch_xla.device())
print((x @ x).cpu().tolist(), xr.global_runtime_device_count())
"""
JAX = """
import jax, numpy as np
x = np.arange(9.).reshape(3, 3)
print(np.asarray(jax.jit(lambda x: x @ x)(x)).tolist(), len(jax.devices()))
"""
SQUARE = "[[15.0, 18.0, 21.0], [42.0, 54.0, 66.0], [69.0, 90.0, 111.0]]"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that stands for libtpu."""
    target = tmp_path_factory.mktemp("other") / "libother.so"
    names = ['-DFORWARD_VARIABLE="NONE"', '-DEVENTS_VARIABLE="OTHER_EVENTS"']
    build.compile_plugin(target, ["-shared", *names])
    return target


class Asked:
    """A Python program that uses the plugin, its output, and both logs."""

    def __init__(self, program: str, folder: Path, forward: str | Path, **more: str | None) -> None:
        own, others = folder / "own", folder / "other"
        logs = [EventLog(path) for path in (own, others)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        values = library.environment(Topology.parse("2x2"), TPU) | {
            "VIRTUAL_TPU_FORWARD": str(forward) or None,
            "XLA_HARNESS_EVENTS": str(own),
            "OTHER_EVENTS": str(others),
            **more,
        }
        environment |= {k: v for k, v in values.items() if v is not None}
        for name, value in values.items():
            if value is None:
                environment.pop(name, None)
        done = run_program(sys.executable, "-c", program, env=environment, timeout=100)
        self.stdout, self.stderr, self.code = done.stdout, done.stderr, done.returncode
        self.events, self.arrived = (log.read() for log in logs)


def shape(events: Events) -> list[tuple[object, ...]]:
    """What must be the same before the forwarding and behind it."""
    return [
        (e.kind, e.process, e.fingerprint, e.devices, e.discovery, e.waits, e.guard)
        for e in sorted(events.all, key=lambda e: (e.kind, e.time))
        # The emulation lacks options that hardware heeds; clients are noted by Python, at its end.
        if e.kind not in ("option", "clients")
    ]


@pytest.mark.long
@pytest.mark.parametrize(("slices", "program"), [("1", JAX), ("2", TORCH + JAX)])
def test_every_call_is_counted_and_arrives(
    other: Path, tmp_path: Path, slices: str, program: str
) -> None:
    more = {"MEGASCALE_NUM_SLICES": slices, "VIRTUAL_TPU_TOPOLOGY": f"{slices}x2"}
    more["VIRTUAL_TPU_BOUNDS"] = "1,2,1"
    run = Asked(program, tmp_path, other, **more)
    frameworks = [name for name in ("torch_xla", "jax") if f"import {name[:3]}" in program]
    total = 2 * int(slices)
    assert run.stdout.splitlines() == [f"{SQUARE} {total}"] * len(frameworks), run.stderr
    events = run.events
    assert [client.by for client in events.of("client")] == frameworks
    assert len(events.of("compile")) == len(events.of("execute")) >= len(frameworks)
    assert len(events.discoveries) == (2 if slices == "2" else 0)
    # The emulation knows that all slices are in this process; hardware's are never.
    seen, arrived = (
        [(*entry[:5], *entry[6:]) for entry in shape(e)] for e in (events, run.arrived)
    )
    assert seen == arrived
    assert "libother" not in run.stdout


@pytest.mark.long
def test_a_clients_stack_and_guard(other: Path, tmp_path: Path) -> None:
    run = Asked(JAX, tmp_path, other, SKIP_MEGASCALE_PJRT_CLIENT="true")
    (client,) = run.events.of("client")
    assert client.guard == "true"
    assert not client.discovery
    assert 'File "<string>", line 4, in <module>' in (client.stack or "")


@pytest.mark.long
@pytest.mark.parametrize("others", [True, False])
def test_only_the_first_devices_are_shown(other: Path, tmp_path: Path, *, others: bool) -> None:
    """Of another library, and of the plugin itself, whose path means that there is no other."""
    path = other if others else library.PLUGIN
    four = library.environment(Topology.parse("4"), TPU) | {
        "VIRTUAL_TPU_FORWARD": str(path),
        "VIRTUAL_TPU_FORWARD_DEVICES": "3",
    }
    run = Asked(TORCH + JAX, tmp_path, path, **four)
    assert run.stdout.splitlines() == [f"{SQUARE} 3"] * 2, run.stderr
    assert [client.by for client in run.events.of("client")] == ["torch_xla", "jax"]
    assert bool(run.arrived.of("client")) == others


def test_nothing_is_emulated(tmp_path: Path) -> None:
    """OpenXLA's CPU plugin says what it is, and its own error of an older caller comes through."""
    run = Asked("import jax; print(jax.devices())\n" + JAX, tmp_path, library.backend_path())
    assert "CpuDevice(id=0)" in run.stdout
    assert "TPU" not in run.stdout
    assert "Unexpected PJRT_ExecuteOptions size: expected 112, got 80" in run.stderr
    kinds = [event.kind for event in run.events.all]
    assert kinds == ["client", "discovered", "compile", "execute", "clients"]


WRONG = {
    "/nowhere/libtpu.so": "VIRTUAL_TPU_FORWARD can't be loaded: /nowhere/libtpu.so",
    "libm.so.6": "VIRTUAL_TPU_FORWARD=libm.so.6 exports no GetPjrtApi",
}


@pytest.mark.parametrize("path", WRONG)
def test_what_can_not_be_forwarded_to_is_an_error(path: str, tmp_path: Path) -> None:
    """And never the virtual TPU in its place."""
    run = Asked("import jax; jax.config.update('jax_platforms', 'tpu')\n" + JAX, tmp_path, path)
    assert run.code
    assert WRONG[path] in run.stderr
    assert not run.stdout
    assert not run.events.all


LIBTPU = """
import hashlib, os
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client
from harness.model.topology import Topology
from harness.lanes.aot import libtpu

if os.environ["TPU_LIBRARY_PATH"]:
    libtpu.library_path = lambda: Path(os.environ["TPU_LIBRARY_PATH"])
mesh = Mesh(np.array(libtpu.devices(Topology.parse("2xv6e:2x2"))).reshape(2, 4), ("a", "b"))
sharding = NamedSharding(mesh, PartitionSpec("a", "b"))
shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
program = jax.jit(lambda x: (x @ x.T).sum(), in_shardings=sharding).lower(shape).compile()
print(hashlib.sha256(program.as_text().encode()).hexdigest())
try:
    xla_client.make_c_api_client("libtpu_aot")
except Exception as error:
    print(error)
"""


def test_the_real_libtpu(tmp_path: Path) -> None:
    """Its compiler gives the same program, and its client the same error, which is counted."""
    real = libtpu_file.library()
    assert real is not None
    through = Asked(LIBTPU, tmp_path, real, **ENVIRONMENT)
    assert [event.kind for event in through.events.all] == ["client", "undiscovered"]
    direct = Asked(LIBTPU, tmp_path, "", **ENVIRONMENT, TPU_LIBRARY_PATH="")
    assert through.stdout == direct.stdout, through.stderr
    digest, error = through.stdout.splitlines()
    assert len(digest) == 64
    assert "topology" in error
