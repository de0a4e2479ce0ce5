"""A lane replaces no platform that the user has named."""

from __future__ import annotations

import sys

import pytest
from support.project import Project

from harness import frameworks

CPU = {"JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"}
TPU = {"JAX_PLATFORMS": "tpu,cpu", "PJRT_DEVICE": "TPU"}
PLUGIN = "PJRT_NAMES_AND_LIBRARY_PATHS"
LANE = {"cpu": CPU, "virtual-tpu": TPU}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CPU, PLUGIN, "JAX_PLATFORM_NAME", "XLA_HARNESS_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "jax", raising=False)  # whose options other tests have set


@pytest.mark.parametrize(
    ("lane", "named", "setting"),
    [
        ("cpu", {"JAX_PLATFORMS": "mine", PLUGIN: "mine:/mine.so"}, "JAX_PLATFORMS='mine'"),
        ("cpu", {"JAX_PLATFORMS": "mine,cpu"}, "JAX_PLATFORMS='mine,cpu'"),
        ("cpu", {"JAX_PLATFORM_NAME": "cuda"}, "JAX_PLATFORM_NAME='cuda'"),
        ("cpu", {PLUGIN: "mine:/mine.so"}, f"{PLUGIN}='mine:/mine.so'"),
        ("cpu", {"PJRT_DEVICE": "CUDA"}, "PJRT_DEVICE='CUDA'"),
        ("cpu", TPU, "PJRT_DEVICE='TPU'"),
        ("virtual-tpu", {"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS='cpu'"),
        ("virtual-tpu", {"JAX_PLATFORM_NAME": "cpu"}, "JAX_PLATFORM_NAME='cpu'"),
        ("virtual-tpu", {"PJRT_DEVICE": "CPU"}, "PJRT_DEVICE='CPU'"),
        ("virtual-tpu", {**CPU, "XLA_HARNESS_PLATFORM": "tpu"}, "PJRT_DEVICE='CPU'"),
        ("cpu", {}, ""),
        ("cpu", {"JAX_PLATFORMS": "", "PJRT_DEVICE": ""}, ""),
        ("cpu", CPU, ""),
        ("cpu", {"JAX_PLATFORMS": "cpu", PLUGIN: "mine:/mine.so"}, ""),
        ("cpu", {"JAX_PLATFORMS": "mine,cpu", "JAX_PLATFORM_NAME": "cpu"}, ""),
        ("cpu", {"JAX_PLATFORMS": "cpu", "JAX_PLATFORM_NAME": "tpu"}, "JAX_PLATFORM_NAME='tpu'"),
        ("cpu", {**TPU, "XLA_HARNESS_PLATFORM": "tpu"}, ""),
        ("virtual-tpu", {"JAX_PLATFORMS": "tpu", "PJRT_DEVICE": "TPU"}, ""),
        ("virtual-tpu", {**CPU, "XLA_HARNESS_PLATFORM": "cpu"}, ""),
    ],
)
def test_what_a_lane_would_replace(lane: str, named: dict[str, str], setting: str) -> None:
    message = frameworks.conflict(lane, LANE[lane], named, is_chosen=True)
    assert message.startswith(
        f"{setting} names a platform that lane {lane} would" if setting else ""
    )
    assert bool(message) is bool(setting)


@pytest.mark.parametrize(
    ("lane", "named", "setting"),
    [
        ("virtual-tpu", CPU, ""),
        ("cpu", TPU, ""),
        ("virtual-tpu", {"JAX_PLATFORMS": "rocm,cpu"}, "JAX_PLATFORMS='rocm,cpu'"),
        ("virtual-tpu", {PLUGIN: "mine:/mine.so"}, f"{PLUGIN}='mine:/mine.so'"),
        ("virtual-tpu", {"JAX_PLATFORM_NAME": "cpu"}, "JAX_PLATFORM_NAME='cpu'"),
    ],
)
def test_what_a_lane_of_a_case_would_replace(
    lane: str, named: dict[str, str], setting: str
) -> None:
    """A platform of another lane is a default; but JAX_PLATFORM_NAME holds on every lane."""
    message = frameworks.conflict(lane, LANE[lane], named, is_chosen=False)
    assert message.startswith(setting)
    assert bool(message) is bool(setting)


def test_what_sessions_of_a_command_inherit() -> None:
    kept = {"JAX_PLATFORM_NAME": "rocm", PLUGIN: "mine:/mine.so", "A": "cpu"}
    assert frameworks.without_lanes({**CPU, **kept}) == kept


PLAIN = "def test_x():\n    import jax\n    assert jax.numpy.ones(2).sum() == 2\n"


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        (PLAIN, ("--lane=cpu",), {"JAX_PLATFORMS": "mine", PLUGIN: "mine:/mine.so"}),
        (f"@pytest.mark.lanes('cpu')\n{PLAIN}", (), {"PJRT_DEVICE": "NEURON"}),
        (PLAIN, ("--lane=virtual-tpu", "-n1"), {"JAX_PLATFORMS": "cpu"}),
    ],
    ids=["plain", "case", "worker"],
)
def test_a_run_ends_before_its_first_test(
    project: Project, content: str, options: tuple[str, ...], named: dict[str, str]
) -> None:
    project.write("test_inner.py", content)
    ran = project.run(*options, **named)
    name, value = next(iter(named.items()))
    assert ran.code == 2, ran.stdout
    assert ran.shows(f"xla-harness: {name}={value!r} names a platform that lane")
    assert "passed" not in ran.stdout


CASES = """
import pytest

@pytest.mark.lanes("virtual-tpu")
def test_tpu():
    import jax
    assert jax.numpy.ones(2).devices().pop().platform == "tpu"

@pytest.mark.lanes("cpu")
def test_cpu():
    import jax
    assert jax.numpy.ones(2).devices().pop().platform == "cpu"
"""


@pytest.mark.parametrize("options", [(), ("--lane=cpu,virtual-tpu",)], ids=["none", "several"])
@pytest.mark.parametrize("named", [CPU, TPU], ids=["cpu", "tpu"])
def test_cases_run_where_they_declare(
    project: Project, options: tuple[str, ...], named: dict[str, str]
) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run(*options, **named)
    assert set(ran.outcomes.values()) == {"passed"}, ran.stdout
    assert ran.code == 0


def test_what_only_collects_replaces_nothing(project: Project) -> None:
    project.write("test_inner.py", CASES)
    ran = project.run("--lane=cpu", "--collect-only", "-q", JAX_PLATFORMS="mine")
    assert ran.code == 0, ran.stdout


def test_a_conftest_names_one(project: Project) -> None:
    project.write("conftest.py", "import jax\njax.config.update('jax_platforms', 'mine')\n")
    project.write("test_inner.py", PLAIN)
    ran = project.run("--lane=cpu")
    assert ran.code == 2, ran.stdout
    assert ran.shows("jax.config.jax_platforms='mine' names a platform that lane cpu would replace")


def test_an_import_names_none(project: Project) -> None:
    """torch_xla chooses a platform when it is imported, unless it is told not to."""
    project.write("conftest.py", "import torch_xla\n")
    project.write("test_inner.py", PLAIN.replace("jax.numpy.ones(2).sum() == 2", "jax.devices()"))
    ran = project.run("--lane=virtual-tpu")
    assert ran.code == 0, ran.stdout


def test_without_a_lane_nothing_is_replaced(project: Project) -> None:
    project.write("test_inner.py", "def test_x():\n    pass\n")
    assert project.run(JAX_PLATFORMS="mine").code == 0
