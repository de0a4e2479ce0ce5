"""The same kernels submitted by JAX itself: its programs are executed like torch_xla's."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from harness.lanes.events import EventLog
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import grouped, paged
from suites.multislice_flash_attention.problems import Problem, assert_close, expected, inputs

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]


def to_jax(tensor: torch.Tensor) -> Any:
    import jax.numpy as jnp

    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy(), jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def to_torch(array: Any) -> torch.Tensor:
    """Return a host tensor of the same dtype."""
    dtype = getattr(torch, str(array.dtype))
    return torch.from_numpy(np.array(array, np.float32)).to(dtype)


def flash(problem: Problem) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    return partial(flash_attention, causal=problem.causal, sm_scale=problem.scale)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_flash_attention(
    tpu_events: EventLog, causal: bool, dtype: torch.dtype, subtests: pytest.Subtests
) -> None:
    """Forward and backward; JAX alone discovers once."""
    import jax

    problem = Problem(causal=causal, dtype=dtype)
    q, k, v, do = (to_jax(t) for t in inputs(problem).values())
    result, pullback = jax.vjp(flash(problem), q, k, v)
    out, gradients = expected(problem)
    assert_close(to_torch(result), out, dtype, "output")
    for name, gradient in zip("qkv", pullback(do), strict=True):
        with subtests.test(gradient=name):
            assert_close(to_torch(gradient), gradients[name], dtype, f"gradient of {name}")
    tpu_events.expect_discoveries(1)


@pytest.mark.topologies("2x2")
def test_flash_attention_under_shard_map(tpu_events: EventLog, topology: Topology) -> None:
    """Over JAX's own hybrid mesh of both slices."""
    import jax
    from jax.experimental.mesh_utils import create_hybrid_device_mesh
    from jax.experimental.shard_map import shard_map
    from jax.sharding import Mesh, PartitionSpec

    problem = Problem(batch=2, causal=True)
    mesh = Mesh(create_hybrid_device_mesh((1, 2), (2, 1), jax.devices()), ("data", "model"))
    spec = PartitionSpec("data", "model")
    sharded = shard_map(
        flash(problem), mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_rep=False
    )
    host = inputs(problem)
    result = jax.jit(sharded)(*(to_jax(host[name]) for name in "qkv"))
    assert_close(to_torch(result), expected(problem)[0], problem.dtype, "output")
    assert len(result.addressable_shards) == topology.total
    tpu_events.expect_discoveries(1)


@pytest.mark.parametrize("groups", grouped.GROUPS.values(), ids=grouped.GROUPS)
def test_grouped_matmul(groups: Sequence[int]) -> None:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    lhs, rhs, sizes = grouped.matrices(groups)
    result = gmm(*map(to_jax, (lhs, rhs, sizes)), jnp.float32, grouped.TILING)
    oracle = grouped.expected(lhs.double(), rhs.double(), groups)
    grouped.assert_close(to_torch(result), oracle, "gmm")


@pytest.mark.parametrize("kv_heads", [1, 8])
def test_paged_attention(kv_heads: int) -> None:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    cache = paged.Cache(kv_heads=kv_heads)
    result = paged_attention(*map(to_jax, paged.inputs(cache)), pages_per_compute_block=2)
    torch.testing.assert_close(to_torch(result).double(), paged.expected(cache), **paged.TOLERANCE)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_splash_attention(causal: bool) -> None:
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernel,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    problem = Problem(causal=causal)
    mask = (masks.CausalMask if causal else masks.FullMask)((problem.queries, problem.keys))
    attention = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * problem.heads), head_shards=1, q_seq_shards=1
    )
    host = inputs(problem)
    q, k, v = (to_jax(host[name]) for name in "qkv")
    result = jax.vmap(attention)(q * problem.scale, k, v)
    assert_close(to_torch(result), expected(problem)[0], problem.dtype, "output")


def test_beside_torch_xla(
    tpu_events: EventLog, start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both frameworks' clients, the second one guarded, run the same kernel."""
    pytest.importorskip("torch_xla")
    start_runtime(spmd=False)
    from suites.multislice_flash_attention.problems import flash as torch_flash
    from suites.multislice_flash_attention.problems import leaves_on_tpu

    monkeypatch.setenv("SKIP_MEGASCALE_PJRT_CLIENT", "true")
    problem = Problem(causal=True)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(problem).items()}
    ours = torch_flash(problem, leaves)
    host = inputs(problem)
    theirs = flash(problem)(*(to_jax(host[name]) for name in "qkv"))
    out, _ = expected(problem)
    assert_close(ours, out, problem.dtype, "torch_xla's output")
    assert_close(to_torch(theirs), out, problem.dtype, "JAX's output")
    assert {e.by for e in tpu_events.read().of("kernel")} == {"torch_xla", "jax"}
    tpu_events.expect_discoveries(1)
