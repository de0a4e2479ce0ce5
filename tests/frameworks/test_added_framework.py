"""An installed package adds a framework: nothing in the harness has to be edited."""

from __future__ import annotations

import pytest
from support.installed import install
from support.project import Project

FRAMEWORK = """
import os
import sys

class Acme:
    name = "acme"
    packages = ("acme",)
    processes = ""
    preload = ("acme_kernels",)
    read_at_import = ("ACME_OPTION_*",)

    def environment(self, platform, devices):
        return {"ACME_PLATFORM": platform, "ACME_DEVICES": str(devices)}

    def prepare(self, platform, devices):
        if "acme" in sys.modules:
            sys.modules["acme"].asked = platform, devices

    def named_platforms(self, environment):
        from harness.frameworks.protocol import NamedPlatforms

        value = environment.get("ACME_PLATFORM", "")
        return [NamedPlatforms("ACME_PLATFORM", value, "ACME_PLATFORM")]

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


ASKED = """
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.frameworks("acme", "torch_xla")]

def test_sum(xla_target):
    assert os.environ["ACME_DEVICES"] == "4"
    assert xla_target.framework in ("acme", "torch_xla")

@pytest.mark.frameworks("jax")
@pytest.mark.parametrize("size", [1, 2])
def test_own(xla_target, size):
    assert xla_target.framework == "jax"
"""


def test_a_case_for_each_framework(project: Project, path: str) -> None:
    project.write("test_inner.py", ASKED)
    ran = project.run(PYTHONPATH=path)
    assert set(ran.outcomes) == {
        "test_sum[cpu-4-acme]",
        "test_sum[cpu-4-torch_xla]",
        "test_own[cpu-4-jax-1]",
        "test_own[cpu-4-jax-2]",
    }, ran.stdout
    assert set(ran.outcomes.values()) == {"passed"}
    assert ran.properties("test_sum[cpu-4-acme]")["framework"] == "acme"


def test_one_process_a_device_is_part_of_its_cases(project: Project) -> None:
    modules = MODULES | {
        "acme_framework": FRAMEWORK.replace('processes = ""', 'processes = "chip"')
    }
    entry = "[xla_harness.frameworks]\nacme = acme_framework:Acme\n"
    path = install(project.path / "site", "acme", modules, entry)
    mark = 'pytestmark = [pytest.mark.lanes("virtual-tpu"), pytest.mark.frameworks("jax", "acme")]'
    project.write("test_inner.py", f"{mark}\ndef test_x(): pass")
    ran = project.run("--collect-only", "--lane=virtual-tpu", PYTHONPATH=path)
    assert ran.shows("test_x[virtual-tpu-4-jax]")
    assert ran.shows("test_x[virtual-tpu-4@chip-acme]")


@pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])
def test_what_needs_one_that_is_not_installed(
    project: Project, path: str, xdist: tuple[str, ...]
) -> None:
    """Cases are left out, files skipped, and neither is lost; anyone else's test fails."""
    acme = path.split(":", maxsplit=1)[0]
    (project.path / "site" / "acme.py").unlink()
    project.write("test_asked.py", ASKED)
    project.write(
        "test_imports.py", "import acme.kernels\n@pytest.mark.lanes('cpu')\ndef test_x(): pass"
    )
    project.write("test_misses.py", "import acmes\n@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    project.write("test_plain.py", "import acme\ndef test_x(): pass")
    ran = project.run(*xdist, "--continue-on-collection-errors", PYTHONPATH=acme)
    assert "test_sum[cpu-4-torch_xla]" in ran.outcomes
    assert "test_sum[cpu-4-acme]" not in ran.outcomes
    assert ran.shows("1  left out: framework acme: not installed in this environment")
    assert ran.shows("ERROR test_misses.py")
    assert ran.shows("ERROR test_plain.py")
    assert not ran.shows("ERROR test_imports.py")
    assert "framework acme: not installed in this environment" in ran.junit.read_text()
