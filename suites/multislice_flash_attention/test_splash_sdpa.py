"""TorchTPU's splash attention on one chip, with either of its backward passes."""

from __future__ import annotations

import pytest
import torch

from harness.job.ranks import run_ranks
from harness.model.topology import Target
from suites.multislice_flash_attention.problems import Problem, assert_close, expected, inputs
from suites.shared.backends import BACKENDS

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("1@chip"),
    pytest.mark.upstream("pytorch/xla#8850"),
]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "two-kernels"])
@pytest.mark.parametrize("causal", [False, True], ids=["plain", "causal"])
def test_attention(xla_target: Target, causal: bool, fused: bool) -> None:
    """The backward pass is one kernel, or one each for the gradients of q and of k and v."""
    pytest.importorskip("jax")  # TorchTPU does not require it
    problem = Problem(causal=causal)
    host = inputs(problem)

    def ask(_: int) -> list[torch.Tensor]:
        backend = BACKENDS[xla_target.framework]
        device = backend.join()
        leaves = [host[name].to(device).requires_grad_() for name in "qkv"]
        result = torch.tpu.ops.splash_sdpa(
            *leaves, scale=problem.scale, is_causal=causal, use_fused_bwd_kernel=fused
        )
        result.backward(host["do"].to(device))
        return [value.detach().cpu() for value in (result, *(leaf.grad for leaf in leaves))]

    (tensors,) = run_ranks(ask, xla_target.topology)
    output, gradients = expected(problem)
    names = ("output", *(f"gradient of {name}" for name in "qkv"))
    oracles = (output, *(gradients[name] for name in "qkv"))
    for ours, oracle, name in zip(tensors, oracles, names, strict=True):
        assert_close(ours, oracle, problem.dtype, name)
