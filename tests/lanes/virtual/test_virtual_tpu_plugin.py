"""The plugin through PJRT's C calls: a caller in C, with sanitizers, against the real backend.

It is in ``tests/plugin``, and linked with the plugin's own sources by the plugin's ``build.py``,
without a warning. Each of its tests runs in a process of its own, and is a test here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.lanes.hlo import Module
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms.tpu import TPU

HERE = Path(__file__).parent / "plugin"
BUILD = Path(library.__file__).with_name("plugin") / "build.py"
SOURCES = sorted(HERE.glob("*.c"))
NAMES = [name for c in SOURCES for name in re.findall(r"(?m)^TEST\((\w+)\)", c.read_text())]
PROGRAMS = """
import sys, jax, jax.numpy as jnp
from jax import lax
from jax._src import compiler

def large(x):
    y = x
    for i in range(150):  # more instructions than one byte can number
        y = jnp.tanh(y + i) if i % 50 else jnp.sin(y) * (i + 1) + jnp.sort(y)[::-1]
    y = lax.fori_loop(0, 5, lambda i, v: lax.cond(v.sum() > 0, jnp.cos, jnp.sin, v), y)
    return y + jnp.cumsum(y) + y @ jnp.outer(y, y)

def small(x):
    return lax.fori_loop(0, 3, lambda i, v: v * 2 + i, x)

for program in large, small:
    with open(f"{program.__name__}.mlir", "w") as file:
        file.write(jax.jit(program).lower(jnp.ones(4, jnp.float32)).as_text())
with open("options.pb", "wb") as file:
    file.write(compiler.get_compile_options(1, 1).SerializeAsString())
"""


@dataclass(frozen=True)
class Driver:
    """The compiled program, and the folder where it runs."""

    program: Path

    def run(self, *names: str, **environment: str) -> dict[str, tuple[int, str]]:
        """The status of each test, and what it wrote to standard error."""
        folder = self.program.parent
        (folder / "suppressions").write_text("leak:xla_cpu_pjrt.so\n")  # the backend's own
        done = subprocess.run(
            [self.program, *names],
            cwd=folder,
            env={k: v for k, v in library.environment(Topology(2, 4), TPU).items() if v is not None}
            | {"LSAN_OPTIONS": "suppressions=suppressions:print_suppressions=0"}
            | {"XLA_HARNESS_EVENTS": "events.jsonl"}
            | {"PYTHONPATH": os.pathsep.join(sys.path)}  # of the process in which ranks meet
            | environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=400,  # more than one test may take, see caller.c
            check=True,
        )
        texts = dict(re.findall(r"(?ms)^--- (\w+)\n(.*?)(?=^--- |\Z)", done.stderr))
        statuses = dict(re.findall(r"(?m)^(\w+): (\d+)$", done.stdout))
        return {name: (int(status), texts.get(name, "")) for name, status in statuses.items()}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Compiled with sanitizers; a warning fails it."""
    program = tmp_path_factory.mktemp("plugin") / "driver"
    flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    includes = [f"-I{BUILD.parent}", f"-I{HERE}"]
    subprocess.run([sys.executable, BUILD, program, *flags, *includes, *SOURCES], check=True)
    subprocess.run(
        [sys.executable, "-c", PROGRAMS],
        cwd=program.parent,
        env={"JAX_PLATFORMS": "cpu"},
        check=True,
    )
    return Driver(program)


@pytest.fixture(scope="module")
def ran(driver: Driver) -> dict[str, tuple[int, str]]:
    """All tests, run once."""
    return driver.run()


@pytest.mark.parametrize("name", NAMES)
def test_in_c(ran: dict[str, tuple[int, str]], name: str) -> None:
    status, text = ran[name]
    assert status == 0, text
    assert "Sanitizer" not in text
    assert "runtime error" not in text


def test_a_new_client_at_an_old_ones_address(driver: Driver) -> None:
    name = "a_client_takes_its_programs_along"
    reuse = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0"  # of memory, at once
    status, text = driver.run(name, ASAN_OPTIONS=reuse)[name]
    assert status == 0, text
    assert "at the same address" in text


@pytest.mark.parametrize("fault", ["leak", "overflow", "undefined"])
def test_sanitizers_see_faults(driver: Driver, fault: str) -> None:
    """The control: without it, silence of the sanitizers would prove nothing."""
    status, text = driver.run("a_fault_is_seen", FAULT=fault)["a_fault_is_seen"]
    assert status != 0
    assert re.search("LeakSanitizer|heap-buffer-overflow|runtime error: signed integer", text)


def test_missing_memory_ends_the_process_with_its_purpose(driver: Driver) -> None:
    environment = {"FAULT": "memory", "ASAN_OPTIONS": "allocator_may_return_null=1"}
    status, text = driver.run("a_fault_is_seen", **environment)["a_fault_is_seen"]
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert f"virtual TPU: no memory for a test: 2 times {2**64 - 1} bytes\n" in text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "is not set: expected the path of xla_cpu_pjrt.so"),
        ("/nowhere/xla_cpu_pjrt.so", "can't be loaded: /nowhere/xla_cpu_pjrt.so: cannot open"),
        ("libm.so.6", "=libm.so.6 exports no GetPjrtApi"),
    ],
)
def test_every_entry_says_why_there_is_no_backend(driver: Driver, path: str, text: str) -> None:
    name = "without_a_backend_every_entry_says_why"
    status, output = driver.run(name, VIRTUAL_TPU_BACKEND=path, EXPECTED=text)[name]
    assert status == 0, output


def test_lines_of_many_processes_are_whole(driver: Driver, ran: object) -> None:
    events = lines(driver, "whole.jsonl")
    assert len(events) == 8 * 100
    assert len({event["process"] for event in events}) == 8
    for process in {event["process"] for event in events}:
        mine = [event for event in events if event["process"] == process]
        assert [event["slice"] for event in mine] == list(range(100))
    lengths = {event["stack"] and len(event["stack"]) for event in events}
    assert len(lengths) == 2
    assert min(lengths - {None}) > 30000


@pytest.mark.parametrize("piece", ["a", "é", "€", "😀", '"\\', "\n\t\x01", "\x7f"])
def test_text_is_cut_between_characters(driver: Driver, ran: object, piece: str) -> None:
    stacks = [event["stack"].lstrip("-") for event in lines(driver, "cut.jsonl")]
    ours = [stack for stack in stacks if stack.startswith(piece)]
    assert len(ours) == 8
    for stack in ours:
        assert (piece * 40000).startswith(stack)
        assert len(stack.encode()) > 5000


def test_text_comes_back_as_it_was(driver: Driver, ran: object) -> None:
    (event,) = lines(driver, "short.jsonl")
    assert event["stack"] == 'File "x.py", line 1\n  é€😀\\\t\x1f'
    assert event["guard"] == '"tr\\ue"\né'
    assert event["by"] == "driver"


def test_only_the_kinds_that_are_asked_for_are_written(driver: Driver, ran: object) -> None:
    """Those that decide a test's outcome are written always."""
    kinds = [event["event"] for event in lines(driver, "kinds.jsonl")]
    assert kinds == ["meet", "kernel", "error", "seen", "failed"]


def test_a_strange_format_is_still_a_line(driver: Driver, ran: object) -> None:
    compilations = [e for e in lines(driver, "format.jsonl") if e["event"] == "compile"]
    assert [set(event["format"]) for event in compilations] == [{'"'}, {'"'}]


def lines(driver: Driver, name: str) -> list[dict[str, Any]]:
    """The events of a file; raises for a line that is no JSON or no UTF-8."""
    text = (driver.program.parent / name).read_bytes().decode()
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def test_renumbering_keeps_the_program(driver: Driver, ran: object) -> None:
    from jax._src.lib import xla_client

    before, after = (hlo_module((driver.program.parent / f"{n}.pb").read_bytes())
                     for n in ("before", "after"))  # fmt: skip
    texts = [xla_client.XlaComputation(module).as_hlo_text() for module in (before, after)]
    assert sorted(texts[0].splitlines()) == sorted(texts[1].splitlines())
    old, new = map(Module.FromString, (before, after))
    renamed: dict[int, int] = {}
    for computation, other in zip(old.computations, new.computations, strict=True):
        pairs = [(computation.root_id, other.root_id)]
        for was, is_ in zip(computation.instructions, other.instructions, strict=True):
            pairs += [(was.id, is_.id)]
            pairs += zip(was.operand_ids, is_.operand_ids, strict=True)
            pairs += zip(was.control_predecessor_ids, is_.control_predecessor_ids, strict=True)
        assert all(renamed.setdefault(was, is_) == is_ for was, is_ in pairs)
    assert len(set(renamed.values())) == len(renamed) > 500
    assert max(renamed) >= 1 << 32
    assert max(renamed.values()) == len(renamed)


def hlo_module(with_config: bytes) -> bytes:
    """The first field of an HloModuleProtoWithConfig: a tag, a length, the module."""
    assert with_config[0] == 1 << 3 | 2
    size, shift, at = 0, 0, 1
    while True:
        byte = with_config[at]
        size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return with_config[at : at + size]
