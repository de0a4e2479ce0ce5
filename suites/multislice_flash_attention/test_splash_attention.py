"""torch_xla's splash attention, over a mesh of two slices."""

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

from harness.lanes.events import EventLog
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.problems import (
    Problem,
    assert_close,
    expected,
    leaves_on_tpu,
)
from suites.multislice_flash_attention.torchax_without_flax import import_torchax

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8954", "pytorch/xla#8850"),
]


def run(problem: Problem) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Leaves, and their splash attention; scaled outside, as splash attention has no scale."""
    from torch_xla.experimental import splash_attention as splash

    mesh = xs.HybridMesh(ici_mesh_shape=(1, 1), dcn_mesh_shape=(2, 1), axis_names=("data", "fsdp"))
    xs.set_global_mesh(mesh)
    leaves = leaves_on_tpu(problem)
    config = splash.SplashAttentionConfig(mesh=str(mesh))
    q = leaves["q"] * problem.scale
    result = splash.splash_attention(
        q, leaves["k"], leaves["v"], config.to_json(), causal=problem.causal
    )
    return leaves, result


def test_as_released(start_runtime: StartRuntime) -> None:
    """What pip install torch_xla==2.9.0 jax==0.7.1 gives has splash attention."""
    start_runtime(spmd=True)
    problem = Problem(batch=2, causal=True)
    _, result = run(problem)
    assert_close(result, expected(problem)[0], problem.dtype, "output")


@pytest.mark.long
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_backward(start_runtime: StartRuntime, causal: bool, subtests: pytest.Subtests) -> None:
    start_runtime(spmd=True)
    import_torchax()
    problem = Problem(batch=2, causal=causal)
    leaves, result = run(problem)
    result.backward(leaves["do"])
    torch_xla.sync()
    out, gradients = expected(problem)
    assert_close(result, out, problem.dtype, "output")
    for name, oracle in gradients.items():
        with subtests.test(gradient=name):
            assert_close(leaves[name].grad, oracle, problem.dtype, f"gradient of {name}")


def test_one_discovery(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import_torchax()
    run(Problem(batch=2, causal=True))
    tpu_events.expect_discoveries(1)
