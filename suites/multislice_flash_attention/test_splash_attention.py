"""torch_xla's splash attention, over a mesh of two slices."""

from typing import Any

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
    inputs,
    leaves_on_tpu,
    segment_ids,
)
from suites.multislice_flash_attention.torchax_without_flax import import_torchax

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8954", "pytorch/xla#8850"),
]


def run(problem: Problem, **options: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Leaves, and their splash attention; scaled outside, as splash attention has no scale."""
    from torch_xla.experimental import splash_attention as splash

    mesh = xs.HybridMesh(ici_mesh_shape=(1, 1), dcn_mesh_shape=(2, 1), axis_names=("data", "fsdp"))
    xs.set_global_mesh(mesh)
    leaves = leaves_on_tpu(problem)
    config = splash.SplashAttentionConfig(
        mesh=str(mesh),
        attentiontype_local_sliding=problem.window is not None,
        slide_window_size=problem.window,
    )
    q = leaves["q"] * problem.scale
    segments = segment_ids(problem, problem.queries).to("xla") if problem.segments else None
    result = splash.splash_attention(
        q, leaves["k"], leaves["v"], config.to_json(), segments, problem.causal, **options
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


@pytest.mark.parametrize("mask", ["segments", "window"])
def test_masks(start_runtime: StartRuntime, mask: str) -> None:
    """Tokens see those of their own segment, or so many before them."""
    start_runtime(spmd=True)
    import_torchax()
    problem = Problem(
        batch=2, causal=True, **{"segments": True} if mask == "segments" else {"window": 20}
    )
    _, result = run(problem)
    assert_close(result, expected(problem)[0], problem.dtype, "output")


@pytest.mark.parametrize("trained", [False, True], ids=["inference", "training"])
def test_soft_cap(start_runtime: StartRuntime, trained: bool) -> None:
    """Scores are at most so large, also where a gradient is wanted."""
    start_runtime(spmd=True)
    import_torchax()
    problem, host = Problem(batch=2), inputs(Problem(batch=2))
    with torch.set_grad_enabled(trained):
        _, result = run(problem, attn_logits_soft_cap=0.5)
    q, k, v = (host[name].double() for name in "qkv")
    weights = torch.softmax(0.5 * torch.tanh(q @ k.mT * problem.scale / 0.5), -1)
    assert_close(result, weights @ v, problem.dtype, "output")


def test_one_discovery(tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    start_runtime(spmd=True)
    import_torchax()
    run(Problem(batch=2, causal=True))
    tpu_events.expect_discoveries(1)
