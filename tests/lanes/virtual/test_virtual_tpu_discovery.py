"""A second discovery in a job of several slices: its outcome, and the stack that made it."""

from __future__ import annotations

import re

import pytest
from support.processes import assert_gone
from support.project import Project, Ran

CASES = """\
from harness.job.slices import run_slices
pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.environment(VIRTUAL_TPU_DEADLINE="2"),
    pytest.mark.deadline(20),
]
GUARD = "SKIP_MEGASCALE_PJRT_CLIENT"

def first_client():
    import torch_xla
    torch_xla.device()

def second_client():
    import jax
    jax.devices()

def both(number):
    first_client()
    second_client()

def note():
    with open("pids", "a") as file:
        print(os.getpid(), file=file)

def test_second_discovery(topology):
    run_slices(lambda number: note() or both(number), topology)

def test_swallowed(topology):
    def swallow(number):
        first_client()
        try:
            second_client()
        except RuntimeError:
            pass
    run_slices(swallow, topology)

@pytest.mark.environment(VIRTUAL_TPU_DEADLINE="60")
@pytest.mark.deadline(3)
def test_own_deadline_first(topology):
    run_slices(lambda number: note() or both(number), topology)

def test_only_one_slice(topology):
    run_slices(lambda number: both(number) if number == 1 else first_client(), topology)

def test_guarded(topology, tpu_events):
    def guarded(number):
        first_client()
        os.environ[GUARD] = "true"
        second_client()
    run_slices(guarded, topology)
    tpu_events.expect_discoveries(1)

def test_single_process(topology, tpu_events):
    both(0)  # all slices are here: a second discovery is counted, and hangs nobody
    tpu_events.expect_discoveries(2)

def test_single_process_expects_one(topology, tpu_events):
    both(0)
    tpu_events.expect_discoveries(1)

def test_first_discovery_late(topology):
    run_slices(lambda number: second_client() if number == 0 else time.sleep(20), topology)

def test_swallowed_first(topology):
    with pytest.raises(RuntimeError):
        run_slices(lambda number: second_client() if number == 0 else time.sleep(20), topology)

@pytest.mark.topologies(2)
def test_one_slice(topology, tpu_events):
    both(0)
    assert not tpu_events.read().discoveries
"""
HUNG = ["test_second_discovery", "test_swallowed", "test_own_deadline_first", "test_only_one_slice"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("discovery"), preload=" torch_xla jax.numpy")
    project.write("test_inner.py", CASES)
    return project.run()


def name(case: str) -> str:
    return f"{case}[virtual-tpu-{'2' if case == 'test_one_slice' else '2x2'}]"


def text(ran: Ran, case: str) -> str:
    return "".join(result.text or "" for result in ran.cases[name(case)].result)


@pytest.mark.parametrize("case", HUNG)
def test_a_second_discovery_hangs(ran: Ran, case: str) -> None:
    properties = ran.properties(name(case))
    assert properties["outcome"] == "hung"
    assert properties["outcome_detail"] == "hung in a second discovery"
    assert int(properties["discoveries"]) == 2
    message = text(ran, case)
    assert message.startswith("hung in a second discovery, made by:\n")
    stack = message.split("made by:\n")[1].split("\n\n")[0]
    assert "in second_client" in stack
    assert "jax.devices()" in stack
    assert "in first_client" not in stack
    assert "/_pytest/" not in stack


def test_it_says_who_hung_and_how_long(ran: Ran) -> None:
    message = (
        r"virtual TPU: slice [01] hung in a second discovery: the others have come already "
        r"and never come again \(2 s\); the client was created without SKIP_MEGASCALE_PJRT_CLIENT"
    )
    assert re.search(message, text(ran, "test_second_discovery"))


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("test_guarded", "passed"),
        ("test_single_process", "passed"),
        ("test_one_slice", "passed"),
        ("test_single_process_expects_one", "failed"),
        ("test_first_discovery_late", "failed"),
        ("test_swallowed_first", "passed"),
    ],
)
def test_what_is_no_second_discovery_is_judged_as_ever(ran: Ran, case: str, outcome: str) -> None:
    assert ran.outcomes[name(case)] == outcome, text(ran, case)


def test_properties_count(ran: Ran) -> None:
    properties = ran.properties(name("test_guarded"))
    assert properties["clients"] == "4"
    assert properties["discoveries"] == "1"
    assert "pallas_kernels" not in properties


def test_no_process_is_left(ran: Ran) -> None:
    pids = [int(pid) for pid in (ran.junit.parent / "pids").read_text().split()]
    assert len(pids) == 4
    assert_gone(pids)
