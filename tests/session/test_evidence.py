"""No test is green without evidence that it ran on the lane and topology asked for."""

from __future__ import annotations

import pytest
from support.project import Project

from harness.errors import BadInputError
from harness.lanes import LANES
from harness.model.topology import Topology

JAX = "\nimport jax, jax.numpy as jnp\n"
USES = "def test_uses(): assert jnp.ones(4).sum() == 4\n"
DOES_NOT = "def test_does_not(): assert 6 * 7 == 42\n"
DECLARES = 'pytestmark = pytest.mark.lanes("virtual-tpu")\n'
NO_CLIENT = "no evidence: no client of lane virtual-tpu was created in its process"
xdist = pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])
isolation = pytest.mark.parametrize("isolation", ["fork", "none"])


@xdist
def test_a_kernel_that_no_compiler_saw(project: Project, xdist: tuple[str, ...]) -> None:
    """libtpu would refuse it for its memory, but only the virtual TPU has seen it."""
    project.write(
        "test_inner.py",
        JAX + "from jax.experimental import pallas as pl\n"
        "def test_x():\n"
        "    shape = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)\n"
        "    def kernel(o): o[...] = jnp.zeros_like(o)\n"
        "    jax.jit(pl.pallas_call(kernel, out_shape=shape)).trace()\n"
        "    assert len(jax.devices()) == 8\n",
    )
    ran = project.run("--lane=tpu-aot", "--topology=2xv6e:2x2", *xdist)
    properties = ran.properties("test_x")
    assert properties["outcome"] == "skipped"
    assert properties["unproven"] == "it compiled nothing with libtpu"
    assert ran.cases["test_x"].is_skipped
    assert ran.shows("1 of 1 tests passed and did nothing on lane tpu-aot: not counted")
    assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED


@xdist
def test_plain_tests_without_a_client(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        JAX + USES + DOES_NOT + "@pytest.mark.xfail(reason='open')\n"
        "def test_xpass(): pass\n"
        "class TestX(unittest.TestCase):\n"
        "    def test_subtests(self):\n"
        "        with self.subTest(): pass\n"
        "def test_in_a_child():\n"
        "    command = [sys.executable, '-c', 'import jax; jax.devices()']\n"
        "    subprocess.run(command, check=True)\n"
        "def test_fails(): assert 6 * 7 == 41\n",
    )
    ran = project.run("--lane=virtual-tpu", "--topology=2x4", *xdist)
    assert ran.outcomes == {
        "test_uses": "passed",
        "test_does_not": "skipped",
        "test_xpass": "skipped",
        "test_subtests": "skipped",
        "test_in_a_child": "passed",
        "test_fails": "failed",
    }
    assert ran.properties("test_does_not")["outcome_detail"] == NO_CLIENT
    assert ran.shows("3 of 6 tests passed and did nothing on lane virtual-tpu")
    assert "exit code is 5" not in ran.stdout  # test_uses was measured


@isolation
def test_a_case_that_declares_the_lane(project: Project, isolation: str) -> None:
    project.write("test_inner.py", DECLARES + DOES_NOT)
    ran = project.run("--isolation", isolation)
    (properties,) = ({e.name: e.value for e in case.properties()} for case in ran.cases.values())
    assert (properties["outcome"], properties["failure"]) == ("failed", NO_CLIENT)
    assert ran.code == 1


def test_it_is_no_unexpected_pass(project: Project) -> None:
    project.write("test_inner.py", DECLARES + DOES_NOT)
    project.write(
        "expectations/inner.toml",
        '[[expectation]]\ncases = ["test_inner.py::*"]\nissue = "pytorch/xla#1"\nreason = "open"\n'
        'signature = "something else"\n',
    )
    ran = project.run("--expectations=expectations")
    assert list(ran.outcomes.values()) == ["failed"]


SHARED = """
pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.share("all")]
def test_first(): jax.devices()
def test_second(): assert jnp.ones(4).sum() == 4
"""


@isolation
def test_a_client_of_an_earlier_case_in_the_process(project: Project, isolation: str) -> None:
    project.write("test_inner.py", JAX + SHARED)
    ran = project.run("--isolation", isolation)
    assert list(ran.outcomes.values()) == ["passed", "passed"]


STARTS = {
    "jax": "import jax\nDEVICES = jax.devices()\n",
    "torch_xla": "import os\nos.environ['PJRT_DEVICE'] = 'CPU'\n"
    "import torch_xla\ntorch_xla.device()\n",
}


@pytest.mark.parametrize(
    ("framework", "mark", "arguments"),
    [
        ("jax", "", ()),
        ("jax", DECLARES, ("--isolation=none",)),
        ("torch_xla", DECLARES, ("-n2",)),
    ],
)
def test_a_runtime_that_runs_already(
    project: Project,
    framework: str,
    mark: str,
    arguments: tuple[str, ...],
) -> None:
    """Every process forked from this one would keep its client: on one CPU device."""
    project.write("conftest.py", STARTS[framework])
    project.write("test_inner.py", mark + USES)
    ran = project.run("--lane=virtual-tpu", *arguments, JAX_PLATFORMS="cpu")
    name = {"jax": "JAX's cpu", "torch_xla": "torch_xla's"}[framework]
    assert ran.shows(f"has started {name} client, which every test would keep")
    assert "passed" not in ran.stdout
    assert ran.code == 2


@pytest.mark.parametrize("lane", ["virtual-tpu", "tpu-aot"])
@pytest.mark.parametrize("topology", ["2xv6e:3x3", "v5p:1x2x1", "v6e:2"])
def test_a_topology_that_no_slice_has(lane: str, topology: str) -> None:
    with pytest.raises(BadInputError, match=r"is not a slice of a TPU: did you mean v\d"):
        LANES[lane].check(Topology.parse(topology))


def test_an_impossible_topology_ends_the_run(project: Project) -> None:
    project.write("test_inner.py", DOES_NOT)
    ran = project.run("--lane=virtual-tpu", "--topology=2xv6e:3x3")
    assert ran.shows("v6e:3x3 is not a slice of a TPU")
    assert ran.code == 2


@xdist
def test_a_topology_that_nothing_uses(project: Project, xdist: tuple[str, ...]) -> None:
    project.write("test_inner.py", DOES_NOT)
    ran = project.run("--topology=2x4", *xdist)
    assert ran.shows("--topology 2x4: no test uses it: tests without a lanes marker run on a lane")
    assert ran.code == 2


def test_a_topology_that_a_case_uses(project: Project) -> None:
    project.write("test_inner.py", DOES_NOT)
    project.write(
        "test_case.py",
        '@pytest.mark.lanes("cpu")\n@pytest.mark.topologies("2x4", 2)\ndef test_case(): pass\n',
    )
    assert project.run("--topology=2x4").code == 0


@xdist
def test_a_run_that_measured_nothing(project: Project, xdist: tuple[str, ...]) -> None:
    project.write("test_inner.py", "def test_x(): pytest.skip('no chip')\ndef test_y(): test_x()\n")
    ran = project.run("--lane=cpu", *xdist)
    assert set(ran.outcomes.values()) == {"skipped"}
    assert ran.shows("No case was measured: if no other test ran, the exit code is 5.")
    assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED
    # Another test, which is no case, is a measurement of its own; plain pytest keeps its rule.
    project.write(
        "test_case.py", "@pytest.mark.lanes('cpu')\ndef test_c(): pytest.skip('no chip')\n"
    )
    project.write("test_inner.py", "def test_plain(): pass\n")
    assert project.run(*xdist).code == 0


@isolation
@pytest.mark.parametrize("code", [0, 1, 5, 7, None])
def test_a_case_cannot_end_the_run_green(
    project: Project, isolation: str, code: int | None
) -> None:
    """Nor with a code that a whole run can end with: the cases after it have not run."""
    project.write(
        "test_inner.py",
        "pytestmark = pytest.mark.lanes('cpu')\n"
        f"def test_x(): pytest.exit('enough', {code})\ndef test_after(): assert 0\n",
    )
    ran = project.run(f"--isolation={isolation}")
    assert ran.code == (7 if code == 7 else pytest.ExitCode.INTERRUPTED)
    assert ran.shows("enough")


@xdist
def test_passes_that_executed_nothing_are_named(project: Project, xdist: tuple[str, ...]) -> None:
    """A client that was made at import is one for all tests of the file."""
    project.write(
        "test_inner.py",
        JAX + "jax.devices()\n" + USES + DOES_NOT + "def test_compiles():\n"
        "    shape = jax.ShapeDtypeStruct((4,), jnp.float32)\n"
        "    jax.jit(lambda x: x * 3 + 1).lower(shape).compile()\n"
        "def test_elsewhere():\n"
        "    with jax.default_device(jax.devices('cpu')[0]): assert jnp.ones(4).sum() == 4\n",
    )
    ran = project.run("--lane=virtual-tpu", "--topology=4", *xdist, JAX_PLATFORMS="tpu,cpu")
    properties = {name: ran.properties(name).get("not_executed", "") for name in ran.cases}
    assert properties["test_uses"] == ""
    assert properties["test_compiles"] == "compiled 1 program for the lane"
    assert {properties["test_does_not"], properties["test_elsewhere"]} <= {
        "only created a client of the lane",
        "did nothing on the lane; its process has a client of it",
    }
    assert ran.shows("passes that executed nothing on their lane")
    assert ran.shows("test_inner.py::test_does_not")
    assert set(ran.outcomes.values()) == {"passed"}
    assert ran.code == 0
