"""Lane ``tpu``: which hardware is here, which cases run on it, and by which ids.

There is no TPU: the chips' device files are said to exist, and a second copy of the plugin stands
for libtpu. All else is what runs on hardware.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project, Ran

from harness.errors import BadInputError
from harness.junit import report
from harness.lanes.hardware.enough import why_not
from harness.lanes.virtual import library
from harness.lanes.virtual.plugin import build
from harness.model.topology import Topology
from harness.platforms.tpu import TPU
from harness.platforms.tpu import machine as hardware

# Other tests load libtpu meanwhile, to compile.
MAY_SHARE = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
V6E = {"TPU_ACCELERATOR_TYPE": "v6e-4", "TPU_TOPOLOGY": "2x2"}
CHIPS = """
from pathlib import Path
from harness.platforms.tpu import machine
machine.chips = lambda *_: [Path("/dev/vfio/0")]
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine's /dev and PCI bus, with four chips of v6e."""
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "dev" / "vfio" / str(number)).touch()
        card = tmp_path / "pci" / str(number)
        card.mkdir(parents=True)
        (card / "vendor").write_text("0x1ae0\n")
        (card / "device").write_text("0x006f\n")
    return tmp_path


def found(machine: Path, **environment: str) -> str:
    return str(Topology.parse(hardware.topology(environment, machine / "dev", machine / "pci")))


SAID = [
    ({"TPU_ACCELERATOR_TYPE": "v6e-4", "TPU_TOPOLOGY": "2x2"}, "v6e:2x2"),
    ({"TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_TOPOLOGY": "2x4"}, "v6e:2x4"),
    ({"TPU_ACCELERATOR_TYPE": "v5litepod-16"}, "v5e:4x4"),
    ({"TPU_ACCELERATOR_TYPE": "v4-8"}, "v4:2x2x1"),  # counts TensorCores
    ({"TPU_ACCELERATOR_TYPE": "v5p-16", "TPU_TOPOLOGY": "2x2x2"}, "v5p:2x2x2"),
    ({"TPU_ACCELERATOR_TYPE": "tpu-v6e-slice", "TPU_TOPOLOGY": "4x4"}, "v6e:4x4"),
    ({"TPU_ACCELERATOR_TYPE": "tpu7x-16", "TPU_TOPOLOGY": "2x2x2"}, "tpu7x:2x2x2"),
    ({**V6E, "MEGASCALE_NUM_SLICES": "2"}, "2xv6e:2x2"),
    ({}, "v6e:2x2"),  # by the chips on the PCI bus
]


@pytest.mark.parametrize(("environment", "expected"), SAID)
def test_the_topology_that_is_here(
    machine: Path, environment: dict[str, str], expected: str
) -> None:
    assert found(machine, **environment) == expected


WRONG = [
    ({"TPU_ACCELERATOR_TYPE": "v9-8"}, "TPU_ACCELERATOR_TYPE='v9-8': expected one as v4-16"),
    ({"TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_TOPOLOGY": "2x2"}, "is a slice of 8 chips"),
    ({"TPU_ACCELERATOR_TYPE": "v6e-4", "TPU_TOPOLOGY": "2x2x1"}, "2 dimensions"),
    ({"TPU_ACCELERATOR_TYPE": "tpu-v6e-slice"}, "expected TPU_TOPOLOGY with it"),
    ({**V6E, "MEGASCALE_NUM_SLICES": "0"}, "MEGASCALE_NUM_SLICES='0'"),
]


@pytest.mark.parametrize(("environment", "text"), WRONG)
def test_what_can_not_be_is_named(machine: Path, environment: dict[str, str], text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        found(machine, **environment)


def test_without_chips_there_is_no_tpu(machine: Path) -> None:
    for path in (machine / "dev" / "vfio").iterdir():
        path.unlink()
    (machine / "dev" / "vfio" / "vfio").touch()  # the driver's own file, chips or not
    with pytest.raises(BadInputError, match="no TPU on this machine"):
        found(machine, **V6E)
    (machine / "dev" / "accel0").touch()
    assert found(machine, **V6E) == "v6e:2x2"


def test_chips_of_no_known_kind(machine: Path) -> None:
    for path in machine.glob("pci/*/device"):
        path.write_text("0x0001\n")
    with pytest.raises(BadInputError, match="no chip on the PCI bus says its kind"):
        found(machine)


FITS = [
    ("v6e:2x2", "v6e:2x2", True),
    ("4", "v6e:2x2", True),
    ("2x4", "2xv6e:2x2", True),
    ("v6e:4", "v6e:2x2", True),
    ("2xv6e:2x2", "v6e:2x2", False),
    ("2x2", "v6e:2x2", False),
    ("v5e:2x2", "v6e:2x2", False),
    ("8", "v6e:2x2", False),
]


@pytest.mark.parametrize(("needed", "here", "fits"), FITS)
def test_a_case_needs_its_topology(needed: str, here: str, fits: bool) -> None:  # noqa: FBT001
    why = why_not(Topology.parse(needed), Topology.parse(here), divides=False)
    assert why == ("" if fits else f"needs {Topology.parse(needed)}, here {here}")


SUITE = """
pytestmark = pytest.mark.lanes("cpu", "virtual-tpu")

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(4, "v6e:2x2", "2x2", "v5e:2x2")
@pytest.mark.parametrize("what", ["x"])
def test_sum(topology, xla_target, start_runtime, tpu_events, what):
    start_runtime(spmd=True)
    import torch
    assert (topology.total, xla_target.lane) == (4, "tpu")
    assert torch.ones(3).to("xla").sum().item() == 3
    tpu_events.expect_discoveries(0)

def test_plain(start_runtime):
    start_runtime(spmd=True)

@pytest.mark.lanes("virtual-tpu")
@pytest.mark.emulated()
def test_emulation(): raise SystemExit("ran")

@pytest.mark.lanes("virtual-tpu", "tpu")
@pytest.mark.topologies(4)
def test_both(xla_target, start_runtime):
    start_runtime(spmd=True)
    assert xla_target.lane == "tpu"

@pytest.mark.lanes("tpu-aot")
def test_compiles(): pass
"""


@pytest.fixture(scope="module")
def on_hardware(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of the lane."""
    project = Project(tmp_path_factory.mktemp("hardware"), preload=" torch_xla.core.xla_model")
    target = project.path / "libtpu.so"
    build.compile_plugin(target, ["-shared", '-DFORWARD_VARIABLE="N"', '-DEVENTS_VARIABLE="N"'])
    project.write("conftest.py", CHIPS)
    project.write("test_inner.py", SUITE)
    behind = {k: v for k, v in library.environment(Topology.parse("v6e:2x2"), TPU).items() if v}
    named = behind | {"TPU_LIBRARY_PATH": str(target)} | V6E
    return project.run("--lane=tpu", **named)


@pytest.mark.long
def test_the_cases_of_virtual_tpu_run_by_their_ids(on_hardware: Ran) -> None:
    assert on_hardware.code == 0, on_hardware.stdout
    results = report.read(on_hardware.junit).results.values()
    assert {r.id.partition("::")[2]: (r.lane, str(r.outcome)) for r in results} == {
        "test_sum[virtual-tpu-4-x]": ("tpu", "passed"),
        "test_sum[virtual-tpu-v6e:2x2-x]": ("tpu", "passed"),
        "test_sum[virtual-tpu-2x2-x]": ("tpu", "skipped"),
        "test_sum[virtual-tpu-v5e:2x2-x]": ("tpu", "skipped"),
        "test_emulation[virtual-tpu-4]": ("tpu", "skipped"),
        "test_plain[virtual-tpu-4]": ("tpu", "passed"),
        "test_both[tpu-4]": ("tpu", "passed"),
    }


@pytest.mark.long
def test_what_is_skipped_says_why(on_hardware: Ran) -> None:
    results = report.read(on_hardware.junit).results.values()
    why = {r.id.partition("::")[2]: r.properties.get("outcome_detail") for r in results}
    assert why["test_sum[virtual-tpu-2x2-x]"] == "needs 2x2, here v6e:2x2"
    assert why["test_sum[virtual-tpu-v5e:2x2-x]"] == "needs v5e:2x2, here v6e:2x2"
    ids = [id_ for id_ in why if why[id_] == "about lane virtual-tpu itself"]
    assert ids == ["test_emulation[virtual-tpu-4]"]


def test_what_was_asked_of_libtpu_is_recorded(on_hardware: Ran) -> None:
    results = report.read(on_hardware.junit).results
    (result,) = (r for r in results.values() if "[virtual-tpu-4-x]" in r.id)
    assert result.properties["clients"] == "1"
    assert result.properties["discoveries"] == "0"
    assert int(result.properties["compilations"]) >= 1
    assert int(result.properties["executions"]) >= 1


def test_both_lanes_are_apart_and_side_by_side(on_hardware: Ran) -> None:
    """A history keeps the lane beside the id; the commands that compare tell them apart too."""
    keys = report.read(on_hardware.junit).results
    assert "test_inner.py::test_sum[virtual-tpu-4-x] @tpu-4" in keys


def test_without_hardware_the_lane_is_refused(project: Project) -> None:
    project.write("test_inner.py", SUITE)
    ran = project.run("--lane=tpu")
    assert ran.code == 2
    assert ran.shows("lane tpu: no TPU on this machine: expected /dev/accel0 or /dev/vfio/0")


def test_the_lane_runs_alone(project: Project) -> None:
    ran = project.run("--lane=tpu,virtual-tpu")
    assert ran.code == 2
    assert ran.shows("--lane tpu: expected no other lane")


def test_a_case_of_the_lane_is_left_out_elsewhere(project: Project) -> None:
    project.write("test_inner.py", "@pytest.mark.lanes('tpu')\ndef test_a(): pass\n")
    ran = project.run()
    assert ran.code == 5
    reason = "no TPU on this machine: expected /dev/accel0 or /dev/vfio/0"
    assert report.read(ran.junit).left_out == {f"lane tpu: {reason}": 1}


def test_a_chip_that_libtpu_can_not_start_is_a_failure(project: Project) -> None:
    """Without chips the real libtpu refuses, in its own words, and the attempt is counted."""
    project.write("conftest.py", CHIPS)
    project.write(
        "test_inner.py",
        """
@pytest.mark.lanes("virtual-tpu")
@pytest.mark.topologies(4)
def test_a(start_runtime):
    start_runtime(spmd=True)
""",
    )
    ran = project.run("--lane=tpu", "--deadline=40", TPU_SKIP_MDS_QUERY="1", **MAY_SHARE, **V6E)
    (result,) = report.read(ran.junit).results.values()
    assert ran.code == 1
    assert result.properties["clients"] == "1"
    assert "virtual" not in result.failure.lower()
