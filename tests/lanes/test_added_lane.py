"""An installed package adds a lane: nothing in the harness has to be edited."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.installed import install
from support.project import Project, Ran

from harness import cli
from harness.errors import BadInputError
from harness.lanes import LANES, Lane
from harness.registry import Registry

# Complete, and not derived from any class of the harness: what docs/add-a-lane.md lists suffices.
LANE = """
from harness.errors import BadInputError
from harness.model.topology import Topology

class AcmeLane:
    name = "acme"
    counts_events = False
    compiles_only = False
    runs_cases_of = ""
    needs = ("acme-runtime",)
    default_topology = Topology(1, 2)
    loaded = 0

    def check(self, topology):
        if topology.slices > 1:
            raise BadInputError(f"topology {topology}: lane acme has one slice")

    def missing(self):
        return ""

    def preload(self):
        AcmeLane.loaded += 1

    def environment(self, topology):
        return {"ACME_DEVICES": str(topology.total)}

    def prepare(self, topology):
        AcmeLane.prepared = topology

    def settle(self):
        AcmeLane.settled = True

    def unproven(self, process, case):
        return ""

    def facts(self, events):
        return {"acme_devices": "seen"}
"""
# A lane that leaves out methods whose answers are read.
DERIVED = LANE.partition("    def missing")[0].replace("AcmeLane:", "AcmeLane(Lane):", 1)
DERIVED = f"from harness.lanes.lane_protocol import Lane\n{DERIVED}"
ENTRY = "[xla_harness.lanes]\nacme = acme_lane:AcmeLane\n"
CASES = """
@pytest.mark.lanes("cpu", "acme")
def test_where(xla_target):
    from acme_lane import AcmeLane
    assert str(xla_target) == "acme-2"
    assert os.environ["ACME_DEVICES"] == "2"
    assert AcmeLane.loaded == 1 and AcmeLane.prepared == xla_target.topology

@pytest.mark.lanes("acme")
def test_crash():
    os.kill(os.getpid(), signal.SIGSEGV)

@pytest.mark.lanes("acme")
def test_no_events(tpu_events):
    pass
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("lane")
    path = install(folder / "site", "acme", {"acme_lane": LANE}, ENTRY)
    project = Project(folder)
    project.write("test_inner.py", CASES)
    return project.run("--lane", "acme", PYTHONPATH=path)


def test_cases_run_there_and_their_results_say_so(ran: Ran) -> None:
    expected = {"lane": "acme", "topology": "2", "outcome": "passed", "acme_devices": "seen"}
    properties = ran.properties("test_where[acme-2]")
    assert expected.items() <= properties.items(), ran.stdout
    assert ran.outcomes["test_crash[acme-2]"] == "crashed"


def test_what_the_lane_does_not_have_is_refused_by_its_name(ran: Ran) -> None:
    assert ran.outcomes["test_no_events[acme-2]"] == "failed"
    assert ran.shows("tpu_events: lane acme counts nothing")


def test_a_topology_that_it_cannot_have_is_refused(project: Project) -> None:
    path = install(project.path / "site", "acme", {"acme_lane": LANE}, ENTRY)
    project.write("test_inner.py", "def test_x(): pass")
    ran = project.run("--lane", "acme", "--topology", "2x2", PYTHONPATH=path)
    assert (ran.code, ran.cases if ran.junit.exists() else {}) == (2, {})
    assert ran.shows("topology 2x2: lane acme has one slice")
    ran = project.run("--lane", "acne", PYTHONPATH=path)
    assert ran.code == 2
    assert ran.shows("lane 'acne': expected one of cpu, virtual-tpu, tpu-aot, tpu, pjrt, acme")


def test_a_plan_has_a_cell_on_it_for_a_stack_with_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "site", "acme", {"acme_lane": LANE}, ENTRY)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(LANES.__dict__, "_entries", raising=False)
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    pins = 'torch_xla = "2.9.0"\n'
    for name, more in (("with", 'acme-runtime = "1"\n'), ("without", "")):
        (stacks / f"{name}.toml").write_text(f'python = "3.11"\n[pins]\n{pins}{more}')
    lanes = {}
    for name in ("with", "without"):
        line = [
            "ci",
            "plan",
            "--folder",
            str(stacks),
            "cells",
            "--stack",
            name,
            "--lanes",
            "cpu,acme",
        ]
        assert cli.main(line) == 0
        cells = capsys.readouterr().out.splitlines()[0].removeprefix("cells=")
        lanes[name] = [cell["lane"] for cell in json.loads(cells)]
    monkeypatch.delitem(LANES.__dict__, "_entries")
    monkeypatch.delitem(LANES._made, "acme")
    assert lanes == {"with": ["cpu", "acme"], "without": ["cpu"]}


@pytest.mark.parametrize(
    ("entry", "body", "message"),
    [
        (
            "acme = acme_lane:AcmeLane",
            DERIVED,
            "expected it to have environment, facts, missing, unproven",
        ),
        ("acme = gone:AcmeLane", "", "lane 'acme' of acme: gone:AcmeLane can't be loaded"),
        ("acme = acme_lane:Gone", LANE, "acme_lane:Gone can't be loaded: AttributeError"),
        ("acme = acme_lane:AcmeLane", "1 / 0", "can't be loaded: ZeroDivisionError"),
        ("acne = acme_lane:AcmeLane", LANE, "expected the name 'acne', found 'acme'"),
        ("acme = acme_lane:AcmeLane", "class AcmeLane: name = 'acme'", "it to have check, compil"),
        ("cpu = acme_lane:AcmeLane", LANE, "expected one package with it, not xla-harness and ac"),
    ],
)
def test_an_entry_that_is_no_lane_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, body: str, message: str
) -> None:
    install(tmp_path, "acme", {"acme_lane": body}, f"[xla_harness.lanes]\n{entry}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_lane", raising=False)
    registry: Registry[Lane] = Registry("lane", Lane, {"cpu": "harness.lanes.cpu:CpuLane"})
    with pytest.raises(BadInputError) as error:
        registry[entry.partition(" ")[0]]
    assert message in str(error.value)


def test_names_are_known_without_an_import_of_the_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a page that sorts by lanes needs nothing that lanes need."""
    install(tmp_path, "acme", {"acme_lane": "raise SystemExit"}, ENTRY)
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[Lane] = Registry("lane", Lane, {"cpu": "gone:Lane"})
    assert list(registry) == ["cpu", "acme"]
    with pytest.raises(KeyError):
        registry["tpu"]
