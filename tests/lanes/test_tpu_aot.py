"""Lane tpu-aot: what a user sees of it, with the real libtpu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.project import Project, Ran

from harness.lanes.tpu_aot.golden import GoldenFile
from harness.model.topology import Topology

GOLDEN = ROOT / "fixtures" / "golden"
INI = "[pytest]\naddopts = --strict-markers\nxla_golden = golden\n"
STEP = """
@pytest.mark.lanes("tpu-aot")
@pytest.mark.topologies("2xv6e:2x2")
def test_sum(start_runtime, tpu_compiler):
    start_runtime(spmd=True)
    import numpy as np, torch, torch_xla.distributed.spmd as xs
    x = torch.ones(8, 128).to("xla")
    mesh = xs.Mesh(np.arange(8), (8,), ("x",))
    xs.mark_sharding(x, mesh, ("x", None))
    program = tpu_compiler.step(x.sum(dim=0){more}).program
    assert program.kinds_across == {{"ALL_REDUCE": 1}}
"""


WRITES = """
import os
from harness.model.topology import Topology
from harness.lanes.tpu_aot import libtpu
os.environ.update(libtpu.ENVIRONMENT)
libtpu.devices(Topology.parse("v6e:2x2"))
print(os.getpid())
"""


@pytest.mark.parametrize(
    ("text", "slices", "devices", "spelled"),
    [
        ("v6e:2x2", 1, 4, "v6e:2x2"),
        ("v6e:8", 1, 8, "v6e:2x4"),
        ("2xv6e:4", 2, 4, "2xv6e:2x2"),
        ("2xv4:2x2x1", 2, 4, "2xv4:2x2x1"),
        ("v4:8", 1, 8, "v4:2x2x2"),
        ("1xv5e:1x1", 1, 1, "v5e:1x1"),
        ("2x4", 2, 4, "2x4"),
    ],
)
def test_spelling(text: str, slices: int, devices: int, spelled: str) -> None:
    topology = Topology.parse(text)
    assert (topology.slices, topology.devices, str(topology)) == (slices, devices, spelled)
    assert Topology.parse(str(topology)) == topology


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("4", "topology 4: lane tpu-aot compiles for a generation: expected it in front"),
        ("v6e:3x3", "v6e:3x3 is not a slice of a TPU: did you mean v6e:2x4, v6e:2x2 or v6e:4x4?"),
        ("v6e:2x2x1", "v6e is a torus of 2 dimensions: expected chips as 2x2"),
        ("v4:2x2", "v4 is a torus of 3 dimensions: expected chips as 2x2x2"),
        ("v6:2x2", "TPU generation 'v6': expected one of v4, v5e, v5p, v6e; did you mean v6e?"),
        ("2x2x2", "topology '2x2x2': expected DEVICES or SLICESxDEVICES"),
    ],
)
def test_a_wrong_topology_is_refused(project: Project, topology: str, message: str) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=tpu-aot", f"--topology={topology}")
    assert ran.code == 2
    assert ran.shows(message)
    assert "Traceback" not in ran.stdout + ran.stderr


def other_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """libtpu starts threads, after which no case could be forked from this process."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_topologies_lists_what_libtpu_takes() -> None:
    done = other_process("-m", "harness", "topologies")
    assert done.returncode == 0, done.stderr
    for name in ("v4:2x2x1", "v5e:1x1", "v5p:4x4x4", "v6e:16x16"):
        assert name in done.stdout.split()


def test_libtpus_own_refusal_is_shown() -> None:
    done = other_process("-c", WRITES.replace("v6e:2x2", "v6e:3x3"))
    assert done.returncode == 1
    assert "topology v6e:3x3: libtpu " in done.stderr
    assert "divisible" in done.stderr


@pytest.fixture(scope="module")
def golden(shared_project: Project) -> Project:
    """A project whose one case has its golden compilation."""
    (shared_project.path / "pytest.ini").write_text(INI)
    shared_project.write("suites/area/test_inner.py", STEP.format(more=""))
    ran = shared_project.run("--lane=tpu-aot", "--update-golden")
    assert ran.code == 0, ran.stdout
    return shared_project


def test_a_golden_compilation_is_kept_by_case(golden: Project) -> None:
    text = (golden.path / "golden/area/test_inner.toml").read_text()
    assert '[["test_sum[tpu-aot-2xv6e:2x2]"]]' in text
    assert "ALL_REDUCE of " in text
    assert "libtpu = " in text


def test_the_same_program_is_golden_again(golden: Project) -> None:
    before = (golden.path / "golden/area/test_inner.toml").read_bytes()
    ran = golden.run("--lane=tpu-aot")
    assert ran.outcomes == {"test_sum[tpu-aot-2xv6e:2x2]": "passed"}
    properties = ran.properties("test_sum[tpu-aot-2xv6e:2x2]")
    assert properties["aot_programs"] == "1"
    assert int(properties["aot_bytes_across"]) > 0
    assert int(properties["aot_peak_bytes"]) > 0
    assert ran.shows("1 programs of 1 cases, 1 topologies")
    golden.run("--lane=tpu-aot", "--update-golden")
    assert (golden.path / "golden/area/test_inner.toml").read_bytes() == before


def other_file(golden: Project, old: str, new: str) -> Ran:
    file = golden.path / "golden/area/test_inner.toml"
    before = file.read_text()
    assert old in before
    try:
        file.write_text(before.replace(old, new))
        return golden.run("--lane=tpu-aot")
    finally:
        file.write_text(before)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("ALL_REDUCE", "ALL_GATHER", "-program 1: across ALL_GATHER of"),
        ("arguments = ", "arguments = 9", "-program 1: arguments 9"),
        ("test_sum[", "test_other[", "has no golden compilation of test_sum["),
    ],
)
def test_a_difference_is_a_diff_of_facts(golden: Project, old: str, new: str, shown: str) -> None:
    ran = other_file(golden, old, new)
    assert ran.code == 1
    assert ran.shows(shown)


def test_the_diff_names_both_stacks(golden: Project) -> None:
    ran = other_file(golden, 'libtpu = "', 'libtpu = "0.0.7-')
    assert ran.code == 0  # the same facts, whatever made them
    ran = other_file(golden, "ALL_REDUCE", "ALL_GATHER")
    assert ran.shows("--- golden, torch_xla ")
    assert ran.shows("+++ now, torch_xla ")


def test_memory_of_another_compiler_may_differ_by_a_tenth(golden: Project) -> None:
    path = golden.path / "golden/area/test_inner.toml"
    before = path.read_text()
    lines = [
        f"temporaries = {int(int(line.split()[-1]) * 1.05)}" if "temporaries" in line else line
        for line in before.splitlines()
    ]
    try:
        path.write_text("\n".join(lines))
        assert golden.run("--lane=tpu-aot").code == 1  # this very stack has no excuse
        path.write_text("\n".join(lines).replace('libtpu = "', 'libtpu = "1-'))
        assert golden.run("--lane=tpu-aot").code == 0
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stack", "expected TOML"),
        ("a = 1", "[stack]: expected the versions"),
        ("[stack]\n[x]\ny = 1", "'x': expected tables of inside"),
        ('[stack]\n[["x"]]\nkernels = "two"', "'x': expected tables of inside"),
    ],
)
def test_a_broken_file_is_named(project: Project, text: str, message: str) -> None:
    (project.path / "pytest.ini").write_text(INI)
    project.write("golden/area/test_inner.toml", text)
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=tpu-aot")
    assert ran.code == 2
    assert ran.shows(f"golden/area/test_inner.toml: {message}")


def test_update_without_a_folder_is_refused(project: Project) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=tpu-aot", "--update-golden")
    assert ran.code == 2
    assert ran.shows("--update-golden: expected a folder, ini xla_golden")


FAULTS = {
    "dropped group": (
        "xm.all_reduce('sum', x, groups=[[0, 1, 2, 3], [4, 5, 6, 7]])",
        "xm.all_reduce('sum', x, groups=[[0, 1, 2, 3]])",
    ),
    "doubled all-gather": (
        "xm.all_gather(x, 0, groups=[list(range(8))], pin_layout=False)",
        "[xm.all_gather(x + n, 0, groups=[list(range(8))], pin_layout=False) for n in (0, 1)]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_no_longer_golden(project: Project, fault: str) -> None:
    (project.path / "pytest.ini").write_text(INI)

    def write(expression: str) -> None:
        project.write(
            "suites/area/test_inner.py",
            f"""
            @pytest.mark.lanes("tpu-aot")
            @pytest.mark.topologies("2xv5e:2x2")
            def test_it(start_runtime, tpu_compiler):
                start_runtime(spmd=False)
                import torch, torch_xla.core.xla_model as xm
                devices = xm.get_xla_supported_devices()
                xm.set_replication(torch.device(devices[0]), devices)
                x = torch.ones(64, 128).to(devices[0])
                result = {expression}
                tpu_compiler.step(*(result if isinstance(result, list) else [result]))
            """,
        )

    right, wrong = FAULTS[fault]
    write(right)
    assert project.run("--lane=tpu-aot", "--update-golden").code == 0
    write(wrong)
    ran = project.run("--lane=tpu-aot")
    assert ran.code == 1, ran.stdout


def test_a_refusal_has_libtpus_words(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        @pytest.mark.lanes("tpu-aot")
        @pytest.mark.topologies("v6e:2x2")
        def test_it(start_runtime, tpu_compiler):
            start_runtime(spmd=False)
            import torch, torch_xla.core.xla_model as xm
            devices = xm.get_xla_supported_devices()
            xm.set_replication(torch.device(devices[0]), devices)
            x = torch.ones(4, 128, dtype=torch.int64).to(devices[0])
            tpu_compiler.step(xm.all_reduce("max", x, groups=[[0, 1, 2, 3]]))
        """,
    )
    ran = project.run("--lane=tpu-aot")
    assert ran.code == 1
    assert ran.shows("RefusedError: UNIMPLEMENTED: Supported lowering only of Sum all reduce")


def test_nothing_is_left_on_the_machine(golden: Project, tmp_path: Path) -> None:
    """No lock file, no log: two compile at once, and a third finds no trace."""
    runs = [
        golden.start("--lane=tpu-aot", f"--junitxml={n}.xml", TMPDIR=str(tmp_path)) for n in "ab"
    ]
    for run in runs:
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 0, output
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_libtpu_writes_no_log() -> None:
    """It has a folder of its own for them, whatever TMPDIR says; names end in the process."""
    process = other_process("-c", WRITES).stdout.splitlines()[-1]
    assert list(Path("/tmp/tpu_logs").glob(f"*.{process}")) == []


def test_a_virtual_tpus_fixture_wants_its_lane(project: Project) -> None:
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_it(tpu_compiler): pass")
    assert project.run().shows("tpu_compiler: lane cpu compiles for no TPU")


def test_every_golden_compilation_has_its_case() -> None:
    """And every case its golden compilation, unless it is refused."""
    command = [sys.executable, "-m", "pytest", "suites", "--lane=tpu-aot", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    cases = {line for line in done.stdout.splitlines() if "::" in line}
    golden = {
        f"suites/{path.relative_to(GOLDEN).with_suffix('.py')}::{test}"
        for path in GOLDEN.rglob("*.toml")
        for test in GoldenFile.read(path).cases
    }
    assert golden - cases == set()
    refused = {case.partition("[")[0].rpartition("::")[2] for case in cases - golden}
    assert refused == {"test_exported_reduction"}
