"""A few programs that tell which libtpu takes what which JAX and torch_xla lower.

``xla-harness matrix --lanes tpu-aot`` runs them on stacks such as ``2.9.0+libtpu=0.0.23``. JAX
serialises a Mosaic kernel in a version that it chooses by the age of the installed libtpu; a libtpu
refuses a version newer than its own, and some old ones crash.
"""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.problems import Problem, flash, leaves_on_tpu

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.topologies("v5e:2x2", "2xv5e:2x2"),
    pytest.mark.upstream("pytorch/xla#8850"),
]
PROBLEM = Problem(queries=256, keys=256, dtype=torch.bfloat16, causal=True)


def over_all(xla_compiler: CaseCompiler, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return an abstract argument, sharded over all devices by its first dimension."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(xla_compiler.devices), ("x",))
    return mesh, jax.ShapeDtypeStruct(
        shape, np.float32, sharding=NamedSharding(mesh, PartitionSpec("x"))
    )


def test_jax_all_reduce(xla_compiler: CaseCompiler) -> None:
    import jax.numpy as jnp

    _, argument = over_all(xla_compiler, (64, 128))
    program = xla_compiler.jax(lambda x: jnp.sum(x, axis=0), argument).program
    assert program.collectives or program.transfers


def test_jax_flash_attention(topology: Topology, xla_compiler: CaseCompiler) -> None:
    """JAX's own kernel, a batch element on each device."""
    import jax
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
    from jax.sharding import PartitionSpec

    mesh, argument = over_all(xla_compiler, (topology.total, 2, 256, 128))
    spec = PartitionSpec("x")
    sharded = _shard_map(jax)(
        flash_attention, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, **_unchecked(jax)
    )
    assert xla_compiler.jax(sharded, argument, argument, argument).program.kernels == 1


def _shard_map(jax: ModuleType) -> Any:
    if hasattr(jax, "shard_map"):
        return jax.shard_map
    from jax.experimental.shard_map import shard_map

    return shard_map


def _unchecked(jax: ModuleType) -> dict[str, bool]:
    """Return shard_map's argument that turns off a check that kernels fail; it was renamed."""
    return {"check_vma": False} if hasattr(jax, "shard_map") else {"check_rep": False}


def test_torch_matmul(start_runtime: StartRuntime, xla_compiler: CaseCompiler) -> None:
    start_runtime(spmd=False)
    x = torch.ones(256, 256).to("xla")
    assert xla_compiler.step(x @ x).flops > 0


def test_torch_flash_attention(start_runtime: StartRuntime, xla_compiler: CaseCompiler) -> None:
    start_runtime(spmd=False)
    leaves = {name: leaf.detach() for name, leaf in leaves_on_tpu(PROBLEM).items()}
    assert xla_compiler.step(flash(PROBLEM, leaves)).program.kernels == 1


def test_torch_flash_attention_backward(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    start_runtime(spmd=False)
    leaves = leaves_on_tpu(PROBLEM)
    flash(PROBLEM, leaves).backward(leaves["do"])
    assert xla_compiler.step(*(leaves[name].grad for name in "qkv")).program.kernels >= 2
