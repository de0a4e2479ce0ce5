"""Lane ``pjrt`` on real plugins: our own, of four devices, and OpenXLA's CPU plugin."""

from __future__ import annotations

import pytest
from support.project import Project, Ran

from harness.junit import report
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms.tpu import TPU

OWN = f"mine={library.PLUGIN}"
DEVICES = {
    name: value
    for name, value in library.environment(Topology.parse("4"), TPU).items()
    if name.startswith("VIRTUAL_TPU_") and value
}
SUITE = """
import numpy as np

def total(devices):
    import jax
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "a")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.device_put(np.arange(4.0 * devices), sharding)
    assert len(jax.devices()) == jax.local_device_count() == devices
    memories = jax.devices()[0].addressable_memories()
    assert all(len(memory.addressable_by_devices()) <= devices for memory in memories)
    return float(jax.jit(lambda x: x.sum())(x))

@pytest.mark.lanes("cpu")
@pytest.mark.topologies(1, 2, 4, "2x2", 8)
def test_sum(topology, xla_target):
    assert xla_target.lane == "pjrt"
    assert total(topology.total) == 2 * topology.total * (4 * topology.total - 1)

@pytest.mark.lanes("cpu")
def test_known():
    assert total(4) == 0

@pytest.mark.lanes("cpu")
def test_nothing(): pass

@pytest.mark.lanes("cpu")
@pytest.mark.emulated
def test_emulation(): raise SystemExit("ran")

def test_plain():
    assert total(4) == 120

def test_numpy(): assert np.ones(3).sum() == 3

def test_torch_xla():
    import torch, torch_xla
    assert (torch.arange(4.0).to(torch_xla.device()) * 2).sum().item() == 12
"""
KNOWN = """
[[expectation]]
cases = ["test_inner.py::test_known[cpu-4]"]
issue = "mine/plugin#1"
reason = "sums are wrong"
signature = "120.0 == 0"
stack = { plugin = "<2" }
"""


def run(project: Project, *options: str, **variables: str) -> Ran:
    return project.run("--lane=pjrt", *options, **{**DEVICES, **variables})


@pytest.fixture(scope="module")
def on_plugin(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run of the lane."""
    project = Project(tmp_path_factory.mktemp("plugin"), preload=" jax.numpy")
    project.write("test_inner.py", SUITE)
    project.write("known/known.toml", KNOWN)
    return run(project, "--plugin", OWN, "--plugin-version=1.5", "--expectations=known")


def test_cases_and_plain_tests_run_on_the_plugins_devices(on_plugin: Ran) -> None:
    results = report.read(on_plugin.junit).results.values()
    assert {r.id.partition("::")[2]: (r.lane, str(r.outcome)) for r in results} == {
        **{f"test_sum[cpu-{size}]": ("pjrt", "passed") for size in ("1", "2", "4", "2x2")},
        "test_sum[cpu-8]": ("pjrt", "skipped"),
        "test_known[cpu-4]": ("pjrt", "expected failure"),  # by the plugin's version
        "test_nothing[cpu-4]": ("pjrt", "failed"),  # a case without evidence
        "test_emulation[cpu-4]": ("pjrt", "skipped"),
        "test_plain": ("pjrt", "passed"),
        "test_numpy": ("pjrt", "skipped"),
        "test_torch_xla": ("pjrt", "passed"),
    }, on_plugin.stdout
    assert on_plugin.shows("needs 8, here 4")
    again = f"pytest --lane pjrt --topology 4 --plugin {OWN} --plugin-version=1.5"
    assert on_plugin.shows(f"{again} 'test_inner.py::test_nothing[cpu-4]'")
    assert on_plugin.shows("no evidence: no client of lane pjrt was created in its process")
    assert on_plugin.shows("about lane cpu itself")


def test_the_record_and_the_header_say_which_plugin_ran(on_plugin: Ran) -> None:
    properties = on_plugin.properties("test_plain")
    assert properties["plugin"] == "mine 1.5"
    assert properties["plugin_api"] == "0.81"
    assert "virtual TPU" in properties["plugin_says"]
    assert '"stablehlo_current_version": [' in properties["plugin_attributes"]
    assert "Layouts" in properties["plugin_extensions"]
    assert int(properties["executions"]) >= 1
    assert on_plugin.shows(f"plugin mine 1.5, PJRT 0.81, 4 devices, {properties['plugin_says']}")


def test_a_newer_plugin_has_to_pass(project: Project) -> None:
    project.write("test_inner.py", SUITE)
    project.write("known/known.toml", KNOWN)
    newer = "--plugin", OWN, "--plugin-version=2.0", "--expectations=known", "-k", "test_known"
    assert run(project, *newer).outcomes == {"test_known": "failed"}


PACKAGE = """
def initialize():
    from jax._src import xla_bridge
    options = {"cpu_device_count": 3}
    xla_bridge.register_plugin("acme_cpu", library_path=LIBRARY, options=options)
"""
COUNTED = """
def test_devices():
    import jax
    assert len(jax.devices()) == DEVICES
    assert jax.devices()[0].client.platform == "cpu"
"""


@pytest.mark.parametrize(
    ("options", "devices"), [((), 3), (("--plugin-option", "cpu_device_count=5"), 5)]
)
def test_a_package_that_is_installed_for_jax(
    project: Project, options: tuple[str, ...], devices: int
) -> None:
    """Its own options hold, and those of the run before them; its version is the package's."""
    library_line = f"LIBRARY = {str(library.backend_path())!r}\n"
    project.write("site/acme/__init__.py", "").write_text(library_line + PACKAGE)
    project.write("site/acme_pjrt-0.7.dist-info/entry_points.txt", "[jax_plugins]\nacme = acme\n")
    project.write("site/acme_pjrt-0.7.dist-info/METADATA", "Name: acme-pjrt\nVersion: 0.7\n")
    project.write("test_inner.py", f"DEVICES = {devices}\n{COUNTED}")
    paths = f"{project.path / 'site'}"
    ran = run(project, "--plugin", "acme", *options, PYTHONPATH=paths)
    assert ran.outcomes == {"test_devices": "passed"}, ran.stdout + ran.stderr
    assert ran.properties("test_devices")["plugin"] == "acme_cpu 0.7"
    assert ran.properties("test_devices")["clients"] == "1"


NO_BACKEND = "PJRT_Plugin_Initialize returned code 9: virtual TPU: VIRTUAL_TPU_BACKEND is not set"
BAD = {
    "no plugin": (("--lane=pjrt",), "lane pjrt: expected --plugin NAME=PATH"),
    "no lane": (("--plugin", OWN), "expected --lane pjrt, whose plugin it is"),
    "other lane": (("--lane=cpu", "--plugin", OWN), "expected --lane pjrt, whose plugin it is"),
    "only an option": (("--plugin-option=a=b",), "--plugin-option: expected --plugin beside it"),
    "no such file": (("--lane=pjrt", "--plugin=a=/no.so"), "plugin a: /no.so: no such file"),
    "no client": (("--lane=pjrt", "--plugin", OWN), f"no client here: {NO_BACKEND}"),
    "two lanes": (("--lane=pjrt,cpu", "--plugin", OWN), "expected no other lane"),
    "slices": (
        ("--lane=pjrt", "--topology=v6e:2x2", "--plugin", OWN),
        "topology v6e:2x2: lane pjrt has no generations",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, project: Project) -> None:
    options, message = BAD[name]
    project.write("test_inner.py", "def test_x(): pass\n")
    ran = project.run(*options, **({} if name == "no client" else DEVICES))
    assert ran.code == 2
    assert ran.shows(message), ran.stdout + ran.stderr
    assert not ran.junit.exists()
