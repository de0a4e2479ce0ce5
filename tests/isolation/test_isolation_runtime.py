"""The same with the real runtime in the child: torch_xla, its flags, its fatal checks."""

from __future__ import annotations

import re

import pytest
from support.project import Project, Ran

CASES = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(1, 4)]

def test_devices(topology, start_runtime):
    start_runtime(spmd=True)
    import torch_xla.runtime as xr
    assert xr.global_runtime_device_count() == topology.total

def test_replicas(topology, start_runtime):
    start_runtime(spmd=False)
    import torch, torch_xla, torch_xla.runtime as xr
    assert xr.global_runtime_device_count() == topology.total
    assert torch.ones(2, device=torch_xla.device()).sum().item() == 2

def test_jax(topology):
    import jax
    assert jax.device_count() == topology.total

@pytest.mark.topologies(4)
@pytest.mark.environment(XLA_FLAGS="--xla_no_such_flag=1")
def test_fatal_check(start_runtime):
    start_runtime(spmd=False)
    pass

@pytest.mark.topologies(4)
@pytest.mark.environment(XLA_FLAGS="--xla_dump_to=dumped --xla_dump_hlo_as_text")
def test_flags_are_merged(start_runtime):
    start_runtime(spmd=False)
    import torch, torch_xla
    assert "--xla_cpu_enable_fast_math=false" in os.environ["XLA_FLAGS"]
    torch.ones(3, device=torch_xla.device()).sum().item()
    assert list(Path("dumped").glob("*.txt"))

@pytest.mark.topologies(4)
def test_memory():
    import torch
    torch.empty(1 << 40, dtype=torch.uint8)

@pytest.mark.topologies(4)
@pytest.mark.deadline(4)
def test_hang_in_the_runtime(start_runtime):
    start_runtime(spmd=False)
    import torch, torch_xla
    x = torch.ones(8, device=torch_xla.device())
    torch_xla.sync()
    ctypes.PyDLL(None).pause()

@pytest.mark.topologies(4)
def test_segfault(start_runtime):
    start_runtime(spmd=False)
    ctypes.string_at(0)

@pytest.fixture
def slow(monkeypatch, start_runtime):
    name = "harness.frameworks.torch_xla.TorchXla.start"
    monkeypatch.setattr(name, lambda *_, **__: time.sleep(2))
    return start_runtime

@pytest.fixture
def started(slow):
    slow(spmd=True)

@pytest.mark.topologies(1)
def test_slow_start(slow):
    slow(spmd=True)

@pytest.mark.topologies(1)
def test_slow_start_of_a_fixture(started): pass

@pytest.mark.topologies(4)
def test_after(start_runtime):
    start_runtime(spmd=True)
    assert not hasattr(sys, "left_behind")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("runtime"), preload=" torch_xla jax.numpy")
    project.write("test_inner.py", CASES)
    return project.run("-o", "junit_logging=all")


@pytest.mark.parametrize("name", ["test_devices", "test_replicas", "test_jax"])
@pytest.mark.parametrize("target", ["[cpu-1]", ""])
def test_device_count_is_the_topologys(ran: Ran, name: str, target: str) -> None:
    properties = ran.properties(name + target)
    assert properties["outcome"] == "passed"
    assert ("duration_runtime_start" in properties) == (name != "test_jax")


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("test_slow_start[cpu-1]", "duration_body"),
        ("test_slow_start_of_a_fixture[cpu-1]", "duration_setup"),
    ],
)
def test_time_of_the_start_is_not_the_cases_own(ran: Ran, name: str, phase: str) -> None:
    properties = ran.properties(name)
    assert properties["outcome"] == "passed"
    assert float(properties["duration_runtime_start"]) >= 2
    assert float(properties.get(phase, 0)) < 1


@pytest.mark.parametrize("name", ["test_flags_are_merged", "test_after"])
def test_runtime_works(ran: Ran, name: str) -> None:
    assert ran.outcomes[name] == "passed", ran.stdout


@pytest.mark.parametrize(
    ("name", "outcome", "detail", "native"),
    [
        (
            "test_fatal_check",
            "crashed",
            r"SIGABRT in .+: \S*/parse_flags_from_env\.cc:\d+\] .* XLA_FLAGS: --xla_no_such_flag=1",
            "xla::",
        ),
        ("test_memory", "failed", r"out of memory: RuntimeError: .*can't allocate memory.*", ""),
        ("test_hang_in_the_runtime", "hung", r"no result after 4 s in test_hang_.*", "pause"),
        ("test_segfault", "crashed", r"SIGSEGV in string_at .*", "ffi_call"),
    ],
)
def test_runtime_ends(ran: Ran, name: str, outcome: str, detail: str, native: str) -> None:
    properties = ran.properties(name)
    assert properties["outcome"] == outcome
    assert re.fullmatch(detail, properties["outcome_detail"], re.DOTALL)
    text = "".join(result.text or "" for result in ran.cases[name].result)
    assert re.search(rf"Native stack:\n.*{native}" if native else "", text, re.DOTALL), text
