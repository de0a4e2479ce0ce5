"""Lane tpu-aot: what a user sees of it, with the real libtpu."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_program
from support.paths import ROOT
from support.project import Project, Ran

from harness.lanes.aot.golden import GoldenFile
from harness.model.topology import Topology

GOLDEN = ROOT / "fixtures" / "golden"
INI = "[pytest]\naddopts = --strict-markers\nxla_golden = golden\n"
TARGET = "tpu-aot-2xv6e:2x2"
HELPERS = """
pytestmark = [pytest.mark.lanes("tpu-aot"), pytest.mark.topologies("2xv6e:2x2")]

def sharded_sum():
    import numpy as np, torch, torch_xla.distributed.spmd as xs
    x = torch.ones(8, 128).to("xla")
    xs.mark_sharding(x, xs.Mesh(np.arange(8), (8,), ("x",)), ("x", None))
    return x.sum(dim=0)

def replicated(dtype=None):
    import torch, torch_xla.core.xla_model as xm
    devices = xm.get_xla_supported_devices()
    xm.set_replication(torch.device(devices[0]), devices)
    return torch.ones(64, 128, dtype=dtype).to(devices[0])
"""
SUM = """
def test_{name}(start_runtime, xla_compiler):
    start_runtime(spmd=True)
    program = xla_compiler.step(sharded_sum()).program
    assert program.kinds_across == {{"ALL_REDUCE": 1}}
"""
COLLECTIVE = """
def test_{name}(start_runtime, xla_compiler):
    start_runtime(spmd=False)
    import torch, torch_xla.core.xla_model as xm
    x = replicated()
    result = {expression}
    xla_compiler.step(*(result if isinstance(result, list) else [result]))
"""
# The right program and the planted fault.
FAULTS = {
    "dropped_group": (
        "xm.all_reduce('sum', x, groups=[[0, 1, 2, 3], [4, 5, 6, 7]])",
        "xm.all_reduce('sum', x, groups=[[0, 1, 2, 3]])",
    ),
    "doubled_all_gather": (
        "xm.all_gather(x, 0, groups=[list(range(8))], pin_layout=False)",
        "[xm.all_gather(x + n, 0, groups=[list(range(8))], pin_layout=False) for n in (0, 1)]",
    ),
}
REFUSED = """
def test_refused(start_runtime, xla_compiler):
    start_runtime(spmd=False)
    import torch, torch_xla.core.xla_model as xm
    x = replicated(torch.int64)
    xla_compiler.step(xm.all_reduce("max", x, groups=[list(range(8))]))
"""
# What is written into the golden file of a case, and what the run says of it then.
EDITS = {
    "collective": ("ALL_REDUCE", "ALL_GATHER", "-program 1: across ALL_GATHER of"),
    "arguments": ("arguments = ", "arguments = 9", "-program 1: arguments 9"),
    "entry": ("test_entry[", "test_other[", "has no golden compilation of test_entry["),
}


WRITES = """
import os
from harness.model.topology import Topology
from harness.lanes.aot import libtpu
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
        ("tpu7x:2x2x1", 1, 8, "tpu7x:2x2x1"),  # a chip is two devices
        ("2xv7x:4", 2, 8, "2xtpu7x:2x2x1"),
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
        ("v4:2x2", "v4 is a torus of 3 dimensions: expected chips as 2x2x1"),
        (
            "v6:2x2",
            "generation 'v6': expected one of v4, v5e, v5p, v6e, tpu7x, a100, h100,",
        ),
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
    return run_program(*command, cwd=ROOT)


def test_topologies_lists_what_libtpu_takes() -> None:
    done = other_process("-m", "harness", "stacks", "topologies")
    assert done.returncode == 0, done.stderr
    for name in ("v4:2x2x1", "v5e:1x1", "v5p:4x4x4", "v6e:16x16"):
        assert name in done.stdout.split()
    assert "GPU: no CUDA plugin is installed: expected jax-cuda12-plugin or" in done.stdout


def test_libtpus_own_refusal_is_shown() -> None:
    done = other_process("-c", WRITES.replace("v6e:2x2", "v6e:3x3"))
    assert done.returncode == 1
    assert "topology v6e:3x3: libtpu " in done.stderr
    assert "divisible" in done.stderr


def golden_file(project: Project, name: str) -> Path:
    """The golden compilations of ``test_NAME.py``."""
    return project.path / "golden" / "area" / f"test_{name}.toml"


@pytest.fixture(scope="module")
def golden(shared_project: Project) -> Project:
    """A project with golden compilations, one file of them for each way in which one can differ."""
    (shared_project.path / "pytest.ini").write_text(INI)
    for name in ("same", "memory", "memory_elsewhere", "elsewhere", "newer", *EDITS):
        shared_project.write(f"suites/area/test_{name}.py", HELPERS + SUM.format(name=name))
    for name, (right, _) in FAULTS.items():
        body = HELPERS + COLLECTIVE.format(name=name, expression=right)
        shared_project.write(f"suites/area/test_{name}.py", body)
    ran = shared_project.run("--lane=tpu-aot", "--update-golden")
    assert ran.code == 0, ran.stdout
    return shared_project


@pytest.fixture(scope="module")
def again(golden: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """Two runs at once of the same programs, and the folder for what they leave behind."""
    temporary = tmp_path_factory.mktemp("left")
    started = [
        golden.start("--lane=tpu-aot", f"--junitxml={n}.xml", TMPDIR=str(temporary)) for n in "ab"
    ]
    runs = [(run, *run.communicate(timeout=240)) for run in started]
    for run, output, _ in runs:
        assert run.returncode == 0, output
    run, stdout, stderr = runs[0]
    return Ran(run.returncode, stdout, stderr, golden.path / "a.xml"), temporary


@pytest.fixture(scope="module")
def differing(golden: Project, again: tuple[Ran, Path]) -> Ran:
    """A run in which each file but one differs from its golden compilations, or their stack."""
    for name, (old, new, _) in EDITS.items():
        file = golden_file(golden, name)
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    for name in ("memory", "memory_elsewhere"):
        file = golden_file(golden, name)
        lines = [
            f"temporaries = {int(int(line.split()[-1]) * 1.05)}" if "temporaries" in line else line
            for line in file.read_text().splitlines()
        ]
        file.write_text("\n".join(lines))
    for name in ("elsewhere", "memory_elsewhere"):
        file = golden_file(golden, name)
        file.write_text(re.sub('libtpu = ".*"', 'libtpu = "0.0.1"', file.read_text()))
    file = golden_file(golden, "newer")
    old, new, _ = EDITS["collective"]
    text = file.read_text().replace(old, new)
    file.write_text(re.sub('libtpu = ".*"', 'libtpu = "99"', text))
    for name, (_, wrong) in FAULTS.items():
        body = HELPERS + COLLECTIVE.format(name=name, expression=wrong)
        golden.write(f"suites/area/test_{name}.py", body)
    golden.write("suites/area/test_refused.py", HELPERS + REFUSED)
    return golden.run("--lane=tpu-aot")


@pytest.mark.long
def test_a_golden_compilation_is_kept_by_case(golden: Project) -> None:
    text = golden_file(golden, "same").read_text()
    assert f'[["test_same[{TARGET}]"]]' in text
    assert "ALL_REDUCE of " in text
    assert "libtpu = " in text


@pytest.mark.long
def test_the_same_program_is_golden_again(again: tuple[Ran, Path]) -> None:
    ran, _ = again
    assert set(ran.outcomes.values()) == {"passed"}
    properties = ran.properties(f"test_same[{TARGET}]")
    assert properties["aot_programs"] == "1"
    assert int(properties["aot_bytes_across"]) > 0
    assert int(properties["aot_peak_bytes"]) > 0
    assert ran.shows("10 programs of 10 cases, 1 topologies")


def test_nothing_is_left_on_the_machine(again: tuple[Ran, Path]) -> None:
    """No lock file, no log: two compile at once, and a third finds no trace."""
    _, temporary = again
    assert [path.name for path in temporary.rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_an_update_without_a_difference_changes_no_byte(golden: Project) -> None:
    before = golden_file(golden, "same").read_bytes()
    assert golden.run("--lane=tpu-aot", "--update-golden", "suites/area/test_same.py").code == 0
    assert golden_file(golden, "same").read_bytes() == before


@pytest.mark.parametrize("name", EDITS)
def test_a_difference_is_a_diff_of_facts(differing: Ran, name: str) -> None:
    assert differing.outcomes[f"test_{name}[{TARGET}]"] == "failed"
    assert EDITS[name][2] in text_of(differing, name)


def test_the_diff_names_both_stacks(differing: Ran) -> None:
    text = text_of(differing, "collective")
    assert "--- golden, torch_xla " in text
    assert "+++ now, torch_xla " in text


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("same", "passed"),
        ("elsewhere", "passed"),  # the same facts, whatever made them
        ("newer", "passed"),  # what an older stack did otherwise is no regression
        ("memory_elsewhere", "passed"),  # another compiler may need a tenth more or less
        ("memory", "failed"),  # this very stack has no excuse
        *((fault, "failed") for fault in FAULTS),
    ],
)
def test_what_differs_fails(differing: Ran, name: str, outcome: str) -> None:
    assert differing.outcomes[f"test_{name}[{TARGET}]"] == outcome


def test_a_refusal_has_libtpus_words(differing: Ran) -> None:
    expected = "RefusedError: UNIMPLEMENTED: Supported lowering only of Sum all reduce"
    assert expected in text_of(differing, "refused")


def text_of(ran: Ran, name: str) -> str:
    """The failure of ``test_NAME``."""
    (result,) = ran.cases[f"test_{name}[{TARGET}]"].result
    return f"{result.message}\n{result.text}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stack", "expected TOML"),
        ("a = 1", "[stack]: expected the versions"),
        ('[stack]\njax = "new"', "[stack] jax: Invalid version: 'new'"),
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


def test_libtpu_writes_no_log() -> None:
    """It has a folder of its own for them, whatever TMPDIR says; names end in the process."""
    process = other_process("-c", WRITES).stdout.splitlines()[-1]
    assert list(Path("/tmp/tpu_logs").glob(f"*.{process}")) == []


def test_a_virtual_tpus_fixture_wants_its_lane(project: Project) -> None:
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_it(xla_compiler): pass")
    assert project.run().shows("xla_compiler: lane cpu compiles for no device")


@pytest.mark.long
def test_every_golden_compilation_has_its_case() -> None:
    """And every case its golden compilation, unless it is refused."""
    command = [sys.executable, "-m", "pytest", "suites", "--lane=tpu-aot", "--collect-only", "-q"]
    done = run_program(*command, "-p", "no:cacheprovider", cwd=ROOT, check=True)
    # Of stacks of JAX alone, on which nothing is golden, and kernels for GPUs.
    elsewhere = ("test_compiles_of_packages.py", "tpu7x", "-cudnn]", "-triton]")
    lines = (line for line in done.stdout.splitlines() if "::" in line)
    cases = {line for line in lines if not any(entry in line for entry in elsewhere)}
    golden = {
        f"suites/{path.relative_to(GOLDEN).with_suffix('.py')}::{test}"
        for path in GOLDEN.rglob("*.toml")
        if "-" not in path.name  # of a framework that is not installed here
        for test in GoldenFile.read(path).cases
    }
    assert golden - cases == set()
    refused = {case.partition("[")[0].rpartition("::")[2] for case in cases - golden}
    assert refused == {
        "test_arithmetic_in_bfloat16",
        "test_exported_reduction",
        "test_scratch_memory_by_its_first_name",
    }


FRAMEWORK = """
@pytest.mark.lanes("tpu-aot")
@pytest.mark.frameworks("jax")
@pytest.mark.topologies("v6e:1x1")
def test_{name}(xla_compiler):
    import jax
    xla_compiler.jax(lambda x: x + 1, jax.ShapeDtypeStruct((8, 128), "float32"))
"""


@pytest.mark.long
def test_a_framework_has_golden_files_of_its_own(project: Project) -> None:
    (project.path / "pytest.ini").write_text(INI)
    project.write("suites/area/test_sum.py", FRAMEWORK.format(name="sum"))
    in_the_way = project.write("golden/area", "")
    refused = project.run("--lane=tpu-aot", "--update-golden")
    assert (refused.code, refused.junit.exists()) == (2, True), refused.stdout
    assert refused.shows("golden/area/test_sum-jax.toml: can't be written: ")
    in_the_way.unlink()
    assert project.run("--lane=tpu-aot", "--update-golden").code == 0
    (file,) = (project.path / "golden" / "area").iterdir()
    assert file.name == "test_sum-jax.toml"
    assert project.run("--lane=tpu-aot").outcomes == {"test_sum[tpu-aot-v6e:1x1-jax]": "passed"}
    file.write_text(file.read_text().replace("arguments = ", "arguments = 9"))
    assert project.run("--lane=tpu-aot").shows("-program 1: arguments 9")


@pytest.mark.parametrize(
    ("package", "options", "message"),
    [
        ("jaxlib", (), "lane tpu-aot: jaxlib is not installed: expected it beside libtpu"),
        ("tomlkit", ("--update-golden",), "--update-golden: expected the package tomlkit"),
    ],
)
def test_a_missing_package_is_named(
    project: Project, package: str, options: tuple[str, ...], message: str
) -> None:
    (project.path / "pytest.ini").write_text(f"{INI}xla_preload =\n")
    project.write("conftest.py", f"import sys\nsys.modules['{package}'] = None")
    project.write("test_inner.py", FRAMEWORK.format(name="sum"))
    ran = project.run("--lane=tpu-aot", *options)
    assert ran.code == 2, ran.stdout
    assert ran.shows(message)
    assert "Traceback" not in ran.stdout + ran.stderr
