"""An installed package adds a framework: nothing in the harness has to be edited."""

from __future__ import annotations

import pytest
from support.installed import install
from support.project import Project

FRAMEWORK = """
import sys

class Acme:
    name = "acme"
    packages = ("acme",)
    preload = ("acme_kernels",)
    read_at_import = ("ACME_OPTION_*",)

    def environment(self, platform, devices):
        return {"ACME_PLATFORM": platform, "ACME_DEVICES": str(devices)}

    def prepare(self, platform, devices):
        if "acme" in sys.modules:
            sys.modules["acme"].asked = platform, devices

    def clients(self):
        return [f"Acme's {name}" for name in getattr(sys.modules.get("acme"), "clients", ())]

    def start(self, devices, *, spmd):
        import acme
        acme.clients.append("cpu")
        if devices != 4:
            raise RuntimeError(f"Acme has 4 devices, expected {devices}")
"""
MODULES = {
    "acme": "clients = []\nasked = None\n",
    "acme_kernels": "import acme, os\nloaded_by = os.getpid()\n",
    "acme_framework": FRAMEWORK,
}
CASES = """
from harness.frameworks import FRAMEWORKS

pytestmark = pytest.mark.lanes("cpu")

def test_asks_it(topology):
    assert sys.modules["acme_kernels"].loaded_by == os.getppid()
    assert (os.environ["ACME_PLATFORM"], os.environ["ACME_DEVICES"]) == ("cpu", "4")
    assert os.environ["PJRT_DEVICE"] == "CPU"
    import acme
    assert acme.asked == ("cpu", 4) and not acme.clients
    FRAMEWORKS["acme"].start(topology.total, spmd=False)
    assert acme.clients == ["cpu"]

def test_next_one():
    import acme
    assert not acme.clients

@pytest.mark.topologies(2)
def test_other_devices(topology):
    FRAMEWORKS["acme"].start(topology.total, spmd=False)
"""


@pytest.fixture
def path(project: Project) -> str:
    entry = "[xla_harness.frameworks]\nacme = acme_framework:Acme\n"
    return install(project.path / "site", "acme", MODULES, entry, version="7.8.9")


def test_a_case_asks_it(project: Project, path: str) -> None:
    project.write("pytest.ini", "[pytest]\naddopts = --strict-markers\n")  # preloads as usual
    project.write("test_inner.py", CASES)
    ran = project.run(PYTHONPATH=path)
    assert ran.outcomes == {
        "test_asks_it": "passed",
        "test_next_one": "passed",
        "test_other_devices[cpu-2]": "failed",
    }, ran.stdout
    assert ran.shows("Acme has 4 devices, expected 2")
    properties = ran.properties("test_asks_it")
    assert properties["acme"] == "7.8.9"
    assert {"torch_xla", "jax", "libtpu"} <= set(properties)


@pytest.mark.parametrize("xdist", [(), ("-n1",)], ids=["alone", "xdist"])
def test_its_started_client_is_found_before_a_fork(
    project: Project, path: str, xdist: tuple[str, ...]
) -> None:
    body = "import acme; acme.clients.append('cpu')\n"
    project.write("test_inner.py", body + "@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    ran = project.run(*xdist, PYTHONPATH=path)
    assert ran.code == 2
    assert ran.shows("has started Acme's cpu client, which every test would keep")
    assert "passed" not in ran.outcomes.values()


def test_what_it_reads_at_import_is_no_cases_to_set(project: Project, path: str) -> None:
    mark = "@pytest.mark.environment(ACME_OPTION_A='1')\n"
    project.write("test_inner.py", f"{mark}@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    ran = project.run(PYTHONPATH=path)
    assert ran.code == 2
    assert ran.shows("environment(ACME_OPTION_A=...) has no effect: it is read when")


def test_one_that_can_not_be_loaded_ends_the_run(project: Project) -> None:
    entry = "[xla_harness.frameworks]\nacme = acme_framework:Gone\n"
    path = install(project.path / "site", "acme", MODULES, entry)
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    ran = project.run(PYTHONPATH=path)
    assert ran.code == 2
    assert ran.shows("framework 'acme' of acme: acme_framework:Gone can't be loaded")
    assert "Traceback" not in ran.stdout + ran.stderr
