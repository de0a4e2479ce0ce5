"""Lane ``gpu``: which GPUs are here, which cases run on them, and what is said without any."""

from __future__ import annotations

import pytest
from support.project import Project

from harness.errors import BadInputError
from harness.junit import report
from harness.lanes.hardware.enough import why_not
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms.gpu import machine

H100, L4, OTHER = "NVIDIA H100 80GB HBM3", "NVIDIA L4", "NVIDIA GeForce RTX 4090"
HERE = [
    ([H100], None, "h100:1"),
    ([H100] * 8, None, "h100:8"),
    ([H100] * 8, "4,5", "h100:2"),
    ([H100] * 2, "1,7,0", "h100:1"),  # CUDA ends the list at the first that it does not know
    ([L4, H100], "1", "h100:1"),
    ([OTHER] * 2, None, "2"),
]


@pytest.mark.parametrize(("kinds", "visible", "expected"), HERE)
def test_the_gpus_that_are_here(kinds: list[str], visible: str | None, expected: str) -> None:
    assert machine.topology_of(kinds, visible) == expected
    Topology.parse(expected)


WRONG = [
    ([], None, "no GPU on this machine: expected /dev/nvidia0"),
    ([H100] * 2, "", "no GPU is visible: CUDA_VISIBLE_DEVICES=: expected 0 to 1"),
    ([H100] * 2, "-1", "CUDA_VISIBLE_DEVICES=-1"),
    ([L4, H100], None, "GPUs of several kinds, NVIDIA H100 80GB HBM3, NVIDIA L4: expected one"),
]


@pytest.mark.parametrize(("kinds", "visible", "text"), WRONG)
def test_what_can_not_be_used(kinds: list[str], visible: str | None, text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        machine.topology_of(kinds, visible)


FITS = [
    ("1", "h100:1", True),
    ("h100:1", "h100:1", True),
    ("4", "h100:8", True),  # by CUDA_VISIBLE_DEVICES
    ("4", "h100:1", False),
    ("1", "2", True),
    ("h200:1", "h100:1", False),
    ("2x1", "h100:8", False),  # two nodes
    ("4@chip", "h100:8", False),  # jobs of several processes
]


@pytest.mark.parametrize(("needed", "here", "fits"), FITS)
def test_a_case_needs_no_more_than_there_is(needed: str, here: str, fits: bool) -> None:  # noqa: FBT001
    why = why_not(Topology.parse(needed), Topology.parse(here), divides=True)
    assert why == ("" if fits else f"needs {needed}, here {here}")


def test_without_a_gpu_the_lane_is_refused(project: Project) -> None:
    project.write("test_inner.py", "def test_x(): pass\n")
    ran = project.run("--lane=gpu")
    assert ran.code == 2
    assert ran.shows("lane gpu: no GPU on this machine: expected /dev/nvidia0")


def test_its_own_cases_are_left_out_with_the_reason(project: Project) -> None:
    project.write("test_inner.py", "@pytest.mark.lanes('gpu')\ndef test_a(): pass\n")
    ran = project.run()
    (left_out,) = report.read(ran.junit).left_out
    why = "no GPU on this machine: expected /dev/nvidia0, and nvidia-smi of its driver"
    assert left_out == f"lane gpu: {why}"


CARD = """
from pathlib import Path
from harness.platforms.gpu import machine
machine.cards = lambda *_: [Path("/dev/nvidia0")]
machine._queried = lambda: [("NVIDIA H100 80GB HBM3", "580")]
"""
CASES = """
import pytest
pytestmark = [pytest.mark.lanes("virtual-gpu"), pytest.mark.topologies(1)]

@pytest.mark.frameworks("jax")
def test_of_jax(xla_target): pass

def test_of_torch_xla(start_runtime): pass
"""


def test_a_card_is_left_to_the_framework_that_has_a_plugin(project: Project) -> None:
    """There is no card: its device file is said to exist, and our plugin stands for JAX's."""
    project.write("conftest.py", CARD)
    project.write("test_inner.py", CASES)
    ran = project.run("--lane=gpu", "--collect-only", "-q", VIRTUAL_TPU_FORWARD=str(library.PLUGIN))
    assert ran.code == 0
    assert ran.shows("test_inner.py::test_of_jax[virtual-gpu-1-jax]")
    assert "test_of_torch_xla" not in ran.stdout
    assert ran.shows("framework torch_xla: only jax has a plugin for a real GPU here")
