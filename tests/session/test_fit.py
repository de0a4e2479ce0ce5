"""What torch_tpu can't be loaded in, or can't start, is refused before the first case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installed import install
from support.project import Project

from harness.model.fit import launched, unlaunched
from harness.model.topology import Topology
from harness.model.versions import installed
from harness.stacks.doctor import packages_fit

CASES = """
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(1)]
def test_case(): pass
"""
PLAIN = "def test_plain(): pass\n"
TORCH = "Requires-Dist: torch<=99,>=98\n"
REQUIRED = {
    TORCH: f"needs torch<=99,>=98, found {installed('torch')}",
    "Requires-Dist: libtpu>=7\n": f"needs libtpu>=7, found {installed('libtpu')}",
    "Requires-Python: >=3.98\n": "needs python>=3.98, found 3.",
}


def _torch_tpu(project: Project, needs: str) -> str:
    return install(project.path / "site", "torch_tpu", {}, version="0.2.0", needs=needs)


@pytest.mark.parametrize("lane", [(), ("--lane=cpu",)], ids=["", "--lane"])
@pytest.mark.parametrize(("needs", "message"), REQUIRED.items(), ids=["torch", "libtpu", "python"])
def test_what_torch_tpu_needs_is_not_there(
    project: Project, needs: str, message: str, lane: tuple[str, ...]
) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run(*lane, PYTHONPATH=_torch_tpu(project, needs))
    assert ran.code == 2
    assert ran.shows(
        f"xla-harness: torch_tpu 0.2.0 can't be used in this environment: it {message}"
    )
    assert not ran.shows("1 passed")


def test_what_torch_tpu_needs_is_there(project: Project) -> None:
    """So is what it needs besides the components, which its own import would say."""
    project.write("test_inner.py", CASES)
    needs = f"Requires-Dist: torch=={installed('torch')}\nRequires-Dist: no-such-package\n"
    assert project.run(PYTHONPATH=_torch_tpu(project, needs)).code == 0


def test_tests_without_a_lane_are_nothing_to_torch_tpu(project: Project) -> None:
    project.write("test_inner.py", PLAIN)
    assert project.run(PYTHONPATH=_torch_tpu(project, TORCH)).code == 0


def test_doctor_names_what_an_environment_of_torch_tpu_lacks(project: Project) -> None:
    site = project.path / "lib" / "python3.11" / "site-packages"
    needs = "Requires-Python: >=3.12\nRequires-Dist: torch<=2.15.0\nRequires-Dist: libtpu>=0.0.50\n"
    install(site, "torch_tpu", {}, version="0.2.0", needs=needs)
    install(site, "torch", {}, version="2.15.0+cpu")
    (remedy,) = (check.remedy for check in packages_fit(site) if check.subject == "torch_tpu")
    lacks = "needs python>=3.12, found 3.11; needs libtpu>=0.0.50, found none"
    assert remedy == f"torch_tpu 0.2.0 {lacks}"


LAUNCHES = """
import torch
def test_launch(): torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=3)
"""
TABLES = """
_V5P_TOPOLOGY: Final[Mapping[int, str]] = immutabledict({2: "1,2,1", 4: "2,2,1"})
_V6E_TOPOLOGY: Final[Mapping[int, str]] = immutabledict({1: "1,1,1", 4: "2,2,1", 8: "2,4,1"})
_TOPOLOGY_BY_TPU_PCI_DEVICE_ID: Final[Mapping[str, Mapping[int, str]]] = immutabledict({
    "0x0062": _V5P_TOPOLOGY,
    "0x006f": _V6E_TOPOLOGY,
    "0x0099": _UNKNOWN,
})
"""


def _with_tables(folder: Path) -> str:
    path = install(folder, "torch_tpu", {}, version="0.2.0")
    (tables := folder / "torch_tpu/_internal/utils/hardware.py").parent.mkdir(parents=True)
    tables.write_text(TABLES)
    return path


def test_a_number_of_chips_that_torch_tpu_does_not_start(project: Project) -> None:
    project.write("test_inner.py", LAUNCHES)
    options = "--lane=virtual-tpu", "--topology=3", "--processes=chip"
    ran = project.run(*options, PYTHONPATH=_with_tables(project.path / "site"))
    assert ran.code == 2
    message = "set_tpu_launch_env starts 1, 4, 8 processes on v6e, not 3; "
    assert ran.shows(f"xla-harness: test_inner.py: topology 3@chip: {message}")


@pytest.fixture
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _with_tables(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    launched.cache_clear()
    yield
    launched.cache_clear()


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize(
    ("program", "topology", "refused"),
    [
        (LAUNCHES, "2x2@chip", True),
        (LAUNCHES, "4@chip", False),
        (LAUNCHES, "v5p:2x2x1@chip", False),
        (LAUNCHES, "v5p:2x2x2@chip", True),
        (LAUNCHES, "v4:2x2x2@chip", False),  # no table
        (LAUNCHES, "3", False),
        (PLAIN, "3@chip", False),
    ],
)
def test_what_torch_tpu_is_asked_to_start(program: str, topology: str, *, refused: bool) -> None:
    """Each generation has its table; a process with all chips, or no launcher, needs none."""
    assert bool(unlaunched(program, Topology.parse(topology))) == refused
