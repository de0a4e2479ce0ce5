"""An installed package adds a platform: nothing in the harness has to be edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.installed import install
from support.project import Project, Ran

ABACUS = """
from harness.platforms.description import Generation, LaunchVariables, Platform

ABACUS = Platform(
    name="abacus",
    title="Abacus",
    default="wood",
    generations=(
        Generation("wood", "Abacus W", torus=1, memory=2),
        Generation("jade", "Abacus Jade", grids=("1x2", "2x3"), memory=3),
    ),
    pjrt_name="abacus",
    device="Bead({id})",
    attributes=lambda generation, slices: {
        "row": "{slice}", "at": "{x},{y}", "material": generation.name, "version": "9.0",
    },
    frameworks={"jax": "abacus,cpu"},
    loading={"PJRT_NAMES_AND_LIBRARY_PATHS": "abacus:{plugin}"},
    launch=LaunchVariables(
        slices="ABACUS_ROWS",
        slice="ABACUS_ROW",
        coordinator="ABACUS_ADDRESS",
        no_discovery="ABACUS_ALONE",
        process_bounds="ABACUS_PROCESSES",
        chips_per_process="ABACUS_BEADS",
        process="ABACUS_PROCESS",
        visible_chips="ABACUS_VISIBLE",
        arguments="ABACUS_ARGUMENTS",
        worker="ABACUS_WORKER",
        hostnames="ABACUS_HOSTS",
    ),
    version=lambda generation, slices: f"abacus {slices}",
)
"""
ENTRY = "[xla_harness.platforms]\nabacus = abacus_platform:ABACUS\n"
CASES = """
@pytest.mark.lanes("virtual-abacus")
@pytest.mark.topologies(4, "2xjade:2x3")
def test_devices(topology):
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import NamedSharding, Mesh, PartitionSpec
    devices = jax.devices()
    kind, jade = ("Abacus Jade", "jade") if topology.generation else ("Abacus W", "wood")
    assert {one.platform for one in devices} == {"abacus"}
    assert {one.device_kind for one in devices} == {kind}
    assert devices[0].client.platform_version.endswith(f"abacus {topology.slices}")
    assert [str(one) for one in devices] == [f"Bead({id})" for id in range(topology.total)]
    last = devices[-1]
    assert (last.material, last.version, last.row) == (jade, "9.0", topology.slices - 1)
    assert list(last.at) == ([1, 2] if topology.generation else [3, 0])
    assert not hasattr(last, "coords")
    assert last.memory_stats()["bytes_limit"] == (3 if topology.generation else 2) << 30
    mesh = Mesh(np.array(devices), "x")
    data = jax.device_put(jnp.arange(12.0), NamedSharding(mesh, PartitionSpec("x")))
    assert float(jax.jit(jnp.sum)(data)) == 66

@pytest.mark.lanes("virtual-abacus")
@pytest.mark.topologies("2xjade:1x2@slice")
def test_job(topology):
    from harness.job.ranks import run_ranks
    def rank(number):
        import jax
        assert os.environ["ABACUS_ROW"] == str(number)
        assert not {"TPU_WORKER_ID", "MEGASCALE_SLICE_ID", "TPU_PROCESS_PORT"} & {*os.environ}
        jax.distributed.initialize(os.environ["JAX_COORDINATOR_ADDRESS"], 2, number)
        place = jax.process_index(), len(jax.devices()), len(jax.local_devices())
        jax.distributed.shutdown()  # which waits: JAX aborts those whose coordinator has ended
        return place
    assert run_ranks(rank, topology) == [(0, 4, 2), (1, 4, 2)]

@pytest.mark.lanes("virtual-abacus")
@pytest.mark.environment(ABACUS_PROCESSES="two")
def test_wrong():
    import jax
    jax.devices()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return install(tmp_path_factory.mktemp("site"), "abacus", {"abacus_platform": ABACUS}, ENTRY)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, path: str) -> Ran:
    project = Project(tmp_path_factory.mktemp("platform"))
    project.write("test_inner.py", CASES)
    return project.run("--lane", "virtual-abacus", PYTHONPATH=path)


@pytest.mark.parametrize(
    "name",
    [
        "test_devices[virtual-abacus-4]",
        "test_devices[virtual-abacus-2xjade:2x3]",
        "test_job[virtual-abacus-2xjade:1x2@slice]",
    ],
)
def test_jax_sees_its_devices_through_the_plugin(ran: Ran, name: str) -> None:
    assert ran.outcomes[name] == "passed", ran.stdout


def test_the_plugin_speaks_of_it(ran: Ran) -> None:
    failure = ran.properties("test_wrong[virtual-abacus-4]")["failure"]
    assert "virtual Abacus: ABACUS_PROCESSES=two: expected X,Y,Z" in failure


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("virtual-abacus", "jade:3x3"), "jade:3x3 is not a slice of a Abacus: did you mean"),
        (("virtual-abacus", "v6e:2x2"), "a Abacus generation 'v6e': expected one of wood, jade"),
        (("virtual-tpu", "jade:2x3"), "a TPU generation 'jade': expected one of v4"),
        (
            ("virtual-tpu", "jada:2"),
            "l4, wood, jade; did you mean jade?",
        ),
        (("virtual-abacsu", "4"), "expected one of cpu, virtual-tpu, "),
    ],
)
def test_errors_name_it(
    project: Project, path: str, options: tuple[str, str], message: str
) -> None:
    project.write("test_inner.py", "def test_x(): pass")
    ran = project.run("--lane", options[0], "--topology", options[1], PYTHONPATH=path)
    assert ran.code == 2
    assert ran.shows(message), ran.stdout + ran.stderr


def test_help_names_it(project: Project, path: str) -> None:
    ran = project.run("--help", PYTHONPATH=path)
    assert ran.shows(", virtual-abacus")


def test_an_entry_that_is_no_platform_is_refused(tmp_path: Path, project: Project) -> None:
    site = install(tmp_path, "abacus", {"abacus_platform": "ABACUS = 1"}, ENTRY)
    project.write("test_inner.py", "def test_x(): pass")
    ran = project.run("--lane", "virtual-abacus", PYTHONPATH=site)
    assert ran.code == 2
    assert ran.shows("platform 'abacus' of abacus: abacus_platform:ABACUS: expected it to have ")
