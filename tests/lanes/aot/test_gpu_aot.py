"""Lane gpu-aot: what a user sees of it, with the real CUDA plugin where that is installed."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest
from support.project import Project, Ran

HAS_PLUGIN = any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
needs_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="no CUDA plugin is installed")
PROGRAMS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def test_sum():
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 4), ("node", "gpu"))
    x = jax.device_put(np.ones((64, 128), np.float32), NamedSharding(mesh, P("node", "gpu")))
    assert (np.asarray(jax.jit(lambda x: x.sum(1))(x)) == 128).all()
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("gpu-aot"))
    project.write("test_programs.py", PROGRAMS)
    return project.run("--lane=gpu-aot", "--topology=2xh100:4")


def programs(ran: Ran, name: str) -> list[dict[str, Any]]:
    """Return the summaries of a case's programs."""
    compiled: list[dict[str, Any]] = json.loads(ran.properties(name)["aot_programs_compiled"])
    return compiled


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("8", "lane gpu-aot compiles for a generation: expected it in front of the size, as"),
        ("h100:3", "h100:3 is not a slice of a GPU: did you mean h100:2, h100:4 or h100:1?"),
        ("v6e:2x2", "a GPU generation 'v6e': expected one of a100, h100, h200, b200, gb200, l4"),
    ],
)
def test_a_wrong_topology_is_refused(project: Project, topology: str, message: str) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=gpu-aot", f"--topology={topology}")
    assert ran.code == 2
    assert ran.shows(message), ran.stderr


@pytest.mark.skipif(HAS_PLUGIN, reason="a CUDA plugin is installed")
def test_without_a_plugin_the_lane_says_which_to_install(project: Project) -> None:
    project.write("test_plain.py", "def test_x(): pass")
    ran = project.run("--lane=gpu-aot", "--topology=h100:8")
    assert ran.shows("no CUDA plugin is installed: expected jax-cuda12-plugin or jax-cuda13-plugin")


@needs_plugin
def test_a_plain_test_is_compiled_without_running_elsewhere(ran: Ran) -> None:
    assert ran.outcomes["test_sum"] == "passed", ran.stdout
    (program,) = (p for p in programs(ran, "test_sum") if p["inside"])
    assert program["inside"] == ["all-reduce of 128 B over {0-3}"]
