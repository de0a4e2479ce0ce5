"""Options and markers: what can't be used is named; what is left out is counted by its cause."""

from __future__ import annotations

import pytest
from junitparser import JUnitXml
from support.project import Project

pytestmark = pytest.mark.measures_coverage

xdist = pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lane=npu", "lane 'npu': expected one of cpu, virtual-tpu"),
        ("--lane=cpu,npu", "lane 'npu': expected one of cpu, virtual-tpu"),
        ("--lane=cpu,", "lane '': expected one of cpu, virtual-tpu"),
        ("--topology=0", "topology '0': expected DEVICES or SLICESxDEVICES, as 4 or 2x4"),
        ("--topology=4,x", "topology 'x': expected"),
        ("--topology=2x", "topology '2x': expected"),
        ("--topology=4@core", "topology '4@core': processes 'core': expected a process for each"),
        ("--processes=chip", "--processes: expected a --lane to run jobs on"),
        (
            "--lane=cpu --processes=core",
            "--processes 'core': expected a process for each chip, host, slice",
        ),
        (
            "--lane=virtual-tpu --topology=4@chip --processes=host",
            "topology 4@chip: expected no 'host' beside it",
        ),
        (
            "--lane=cpu --topology=4 --processes=chip",
            "topology 4@chip: lane cpu has all devices in one process",
        ),
        (
            "--lane=tpu-aot --topology=4 --processes=chip",
            "topology 4@chip: lane tpu-aot compiles for a generation",
        ),
        ("--lane=virtual-tpu --topology=6@host", "topology 6@host: a slice of"),
        ("--deadline=0", "--deadline '0': expected a number above 0"),
        ("--deadline=nan", "--deadline 'nan': expected a number above 0"),
        ("--deadline=inf", "--deadline 'inf': expected a number above 0"),
        ("--deadline=soon", "--deadline 'soon': expected a number above 0"),
        ("--isolation=some", "--isolation 'some': expected fork or none"),
        ("--memory-limit=-1", "--memory-limit '-1': expected a number above -1"),
        ("--output-limit=0", "--output-limit '0': expected a number above 0"),
        ("--expectations=nowhere", "nowhere: expected a folder of expectation files"),
    ],
)
def test_bad_option(project: Project, option: str, message: str) -> None:
    ran = project.run(*option.split())
    assert ran.code == 2
    assert ran.shows(f"xla-harness: {message}")
    assert "Traceback" not in ran.stdout + ran.stderr


BAD_MARKERS = {
    "lanes('npu')": "lane 'npu': expected one of cpu, virtual-tpu",
    "lanes()": "lanes(): expected names, as lanes('cpu', 'tpu')",
    "lanes(['cpu'])": "lanes(['cpu']): expected names, as lanes('cpu', 'tpu')",
    "lanes(('cpu', 'tpu'))": "lanes(('cpu', 'tpu')): expected names, as lanes('cpu', 'tpu')",
    "lanes(None)": "lanes(None): expected names, as lanes('cpu', 'tpu')",
    "lanes(name='cpu')": "lanes(name=...): expected no keyword",
    "lanes('npu')\n@pytest.mark.topologies(4)": "lane 'npu': expected one of cpu, virtual-tpu",
    "lanes('cpu')\n@pytest.mark.topologies('4x')": "topology '4x': expected DEVICES or",
    "lanes('cpu')\n@pytest.mark.topologies(0)": "topology '0': expected DEVICES or",
    "topologies(4)": "topologies(...) needs lanes(...)",
    "processes('chip')": "processes(...) needs lanes(...)",
    "lanes('virtual-tpu')\n@pytest.mark.processes()": "processes(): expected words, as processes(",
    "lanes('virtual-tpu')\n@pytest.mark.processes('core')": "processes 'core': expected a process",
    "lanes('cpu')\n@pytest.mark.processes('chip')": "topology 4@chip: lane cpu has all devices in",
    "lanes('cpu')\n@pytest.mark.deadline()": "deadline(...): expected one argument",
    "lanes('cpu')\n@pytest.mark.deadline('long')": "deadline('long'): expected seconds above 0",
    "lanes('cpu')\n@pytest.mark.deadline(10**400)": f"deadline(1{'0' * 400}): expected",
    "lanes('cpu')\n@pytest.mark.environment(**{'A=B': 1})": "environment(A=B='1'): expected NAME=",
    "lanes('cpu')\n@pytest.mark.environment(A='\\0')": "environment(A='\\x00'): expected",
    "lanes('cpu')\n@pytest.mark.topologies('9' * 5000)": f"topology '{'9' * 5000}': expected",
    "lanes('cpu')\n@pytest.mark.deadline(0)": "deadline(0): expected seconds above 0",
    "lanes('cpu')\n@pytest.mark.share()": "share(...): expected one argument",
    "lanes('cpu')\n@pytest.mark.upstream('8854')": "upstream('8854'): expected 'owner/repo#number'",
    "lanes('cpu')\n@pytest.mark.environment('A=1')": "environment('A=1',): expected NAME=value",
}


@pytest.mark.parametrize("marker", BAD_MARKERS)
def test_bad_marker(project: Project, marker: str) -> None:
    project.write("test_inner.py", f"@pytest.mark.{marker}\ndef test_x(): pass")
    ran = project.run()
    assert ran.code == 2
    places = ("test_inner.py::test_x", "test_inner.py::test_x[cpu-4]")
    assert any(ran.shows(f"{place}: {BAD_MARKERS[marker]}") for place in places)
    assert "INTERNALERROR" not in ran.stdout


@xdist
def test_bad_marker_of_a_unittest_class(project: Project, xdist: tuple[str, ...]) -> None:
    body = "@pytest.mark.lanes('npu')\nclass TestX(unittest.TestCase):\n    def test_x(self): pass"
    project.write("test_inner.py", body)
    ran = project.run(*xdist)
    assert ran.code == 2
    assert ran.shows("TestX::test_x: lane 'npu': expected one of cpu, virtual-tpu")


def test_two_lanes_are_no_place_for_a_plain_test(project: Project) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=cpu", "--topology=1,4")
    assert ran.code == 2
    assert ran.shows("tests without a lanes marker: expected one --lane and one --topology")


JOBS = """\
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.topologies(2, "2x2")]
@pytest.mark.processes("one", "chip")
def test_x(): pass
@pytest.mark.processes("slice")
@pytest.mark.topologies("2x2")
def test_y(): pass
def test_z(): pass
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            (),
            "x[2] x[2@chip] x[2x2] x[2x2@chip] y[2x2@slice] z[2] z[2x2]",
        ),
        (("--processes=chip",), "x[2@chip] x[2x2@chip]"),
        (("--processes=chip", "--topology=2x2"), "x[2x2@chip]"),
        (("--topology=2x2@slice",), "y[2x2@slice]"),
        (("--topology=2",), "x[2] z[2]"),
    ],
    ids=" ".join,
)
def test_processes_multiply_topologies(
    project: Project, options: tuple[str, ...], expected: str
) -> None:
    project.write("test_inner.py", JOBS)
    ran = project.run("--lane=virtual-tpu", "--collect-only", "-q", *options)
    names = [
        line.partition("::test_")[2].replace("virtual-tpu-", "")
        for line in ran.stdout.splitlines()
        if "::" in line
    ]
    assert names == expected.split()


IN_A_JOB = """from harness.job.ranks import run_ranks
@pytest.mark.lanes("virtual-tpu")
@pytest.mark.processes("chip", "host")
@pytest.mark.topologies("2x2")
def test_x(topology):
    places = run_ranks(lambda n: (os.environ["RANK"], os.environ["MEGASCALE_SLICE_ID"]), topology)
    print(topology, places)
    assert len(places) == topology.process_count
"""


def test_report_states_the_processes(project: Project) -> None:
    project.write("test_inner.py", IN_A_JOB)
    ran = project.run("--lane=virtual-tpu")
    assert "rank" not in ran.stdout  # a RankError
    for each in ("chip", "host"):
        properties = ran.properties(f"test_x[virtual-tpu-2x2@{each}]")
        assert (properties["lane"], properties["topology"]) == ("virtual-tpu", f"2x2@{each}")


LEFT_OUT = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies(1, 2, 4)]
@pytest.mark.parametrize("n", [1, 2])
def test_x(n): pass
@pytest.mark.topologies(4)
def test_y(): pass
class TestZ(unittest.TestCase):
    def test_z(self): pass
"""


@pytest.mark.parametrize(
    ("options", "ran_names", "causes"),
    [
        (
            ("--topology=1", "-n2"),
            {"test_x[cpu-1-1]", "test_x[cpu-1-2]", "test_z"},
            {
                "topology 2: run with --topology 2": 3,
                "topology 4: run with --topology 4": 4,
            },
        ),
        (
            ("--topology=1,4", "-k", "test_z or test_y"),
            {"test_y", "test_z"},
            {
                "topology 2: run with --topology 2": 1,
                "unittest, one target: run cpu-4 alone": 1,
            },
        ),
        (
            ("--topology=8", "-k", "test_y"),
            set(),
            {"topology 4: run with --topology 4": 1},
        ),
    ],
    ids=["one", "two", "none"],
)
def test_left_out_is_counted_by_cause(
    project: Project,
    options: tuple[str, ...],
    ran_names: set[str],
    causes: dict[str, int],
) -> None:
    project.write("test_inner.py", LEFT_OUT)
    ran = project.run(*options)
    assert set(ran.cases) == ran_names
    assert ran.code == (0 if ran_names else 5)
    properties = {
        entry.name: entry.value
        for suite in JUnitXml.fromfile(str(ran.junit))
        for entry in suite.properties()
        if entry.name.startswith("left out: ")
    }
    assert properties == {f"left out: {cause}": str(count) for cause, count in causes.items()}
    for cause, count in causes.items():
        assert ran.shows(f"{count} left out: {cause}")
