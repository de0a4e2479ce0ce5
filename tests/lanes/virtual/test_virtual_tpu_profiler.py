"""torch_xla and JAX start the plugin's profiler without asking whether it has one."""

from __future__ import annotations

import pytest
from support.project import Project

TRACES = """
import torch, torch_xla
import torch_xla.debug.profiler as xp

def written(folder):
    return [file for file in folder.rglob("*.xplane.pb") if file.stat().st_size]

def test_torch_xla(tmp_path):
    server = xp.start_server(0)
    xp.start_trace(str(tmp_path))
    with xp.Trace("a product"):
        product = torch.ones(4, 4).to("xla") @ torch.ones(4, 4).to("xla")
        assert product.cpu()[0, 0] == 4
    xp.stop_trace()
    assert len(written(tmp_path)) == 1

def test_started_after_the_client(tmp_path):
    torch_xla.device()
    xp.start_trace(str(tmp_path))
    xp.stop_trace()
    assert len(written(tmp_path)) == 1

def test_jax(tmp_path):
    import jax
    with jax.profiler.trace(str(tmp_path)):
        jax.numpy.ones(3).sum().block_until_ready()
    assert len(written(tmp_path)) == 1
"""


@pytest.mark.long
def test_traces(project: Project) -> None:
    project.write("test_inner.py", TRACES)
    ran = project.run("--lane=virtual-tpu", "-rA")
    assert set(ran.outcomes.values()) == {"passed"}
    assert len(ran.outcomes) == 3
    assert not ran.shows("Profiler API not found")
    assert not ran.shows("does not implement a profiler interface")
