"""Every Pallas kernel that torch_xla calls, compiled by Mosaic, and a training step over slices.

What lane virtual-tpu interprets, libtpu's compiler takes here as torch_xla submits it: a kernel's
module must be accepted by Mosaic, be there as often as it was called, and be sharded over a
multi-slice mesh without a collective of its own. Nothing is executed, so the kernels that JAX's
interpreter can't run are here as well (pytorch/xla#8850, #8334).
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch_xla.distributed.spmd as xs

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.compiler import Compilation, RefusedError
from harness.model.topology import Topology
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import training
from suites.multislice_flash_attention.grouped import GROUPS, TILING, matrices
from suites.multislice_flash_attention.paged import Cache
from suites.multislice_flash_attention.paged import inputs as paged_inputs
from suites.multislice_flash_attention.problems import Problem, flash, leaves_on_tpu
from suites.multislice_flash_attention.torchax_without_flax import import_torchax

pytestmark = [
    pytest.mark.lanes("tpu-aot"),
    pytest.mark.topologies("v6e:2x2", "v5e:2x2", "v4:2x2x1"),
    pytest.mark.upstream("pytorch/xla#8850"),
]

PROBLEMS = {
    "plain": Problem(batch=2, queries=512, keys=512),
    "causal": Problem(queries=512, keys=512, causal=True),
    "segments": Problem(batch=2, queries=512, keys=512, segments=True),
    "bias": Problem(queries=512, keys=512, bias=True),
    "bf16": Problem(queries=512, keys=512, dtype=torch.bfloat16, causal=True),
    "long-keys": Problem(queries=256, keys=1024),
    "wide-heads": Problem(width=256, queries=256, keys=256),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_flash_attention(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler, name: str
) -> None:
    """The forward pass alone is one kernel."""
    start_runtime(spmd=False)
    leaves = {key: leaf.detach() for key, leaf in leaves_on_tpu(PROBLEMS[name]).items()}
    assert xla_compiler.step(flash(PROBLEMS[name], leaves)).program.kernels == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "causal", "segments", "bf16"])
def test_flash_attention_backward(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler, name: str
) -> None:
    """Both passes: one kernel forward, and one each for the gradients of keys and queries."""
    start_runtime(spmd=False)
    leaves = leaves_on_tpu(PROBLEMS[name])
    result = flash(PROBLEMS[name], leaves)
    result.backward(leaves["do"])
    compiled = xla_compiler.step(result, *(leaves[key].grad for key in "qkv"))
    assert compiled.program.kernels == 3


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_paged_attention(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler, kv_heads: int
) -> None:
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import paged_attention

    tensors = [t.to("xla") for t in paged_inputs(Cache(kv_heads=kv_heads))]
    result = paged_attention(*tensors, pages_per_compute_block=2)
    assert xla_compiler.step(result).program.kernels == 1


def ints(*values: int | list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32).to("xla")


def test_ragged_paged_attention(start_runtime: StartRuntime, xla_compiler: CaseCompiler) -> None:
    """The kernel of vLLM on TPU, which no interpreter of JAX can run."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import ragged_paged_attention

    q = torch.randn(8, 2, 128).to("xla", torch.bfloat16)
    pages = torch.randn(4, 16, 4, 128).to("xla", torch.bfloat16)
    result = ragged_paged_attention(
        q,
        pages,
        ints(8),
        ints([0, 1]),
        ints(0, 8),
        ints(1),
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
    )
    assert xla_compiler.step(result).program.kernels == 1


def test_multi_query_paged_attention(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import multi_queries_paged_attention

    q, pages = torch.randn(1, 8, 2, 128).to("xla"), torch.randn(2, 8, 32, 128).to("xla")
    result = multi_queries_paged_attention(
        q,
        pages,
        pages,
        ints(20),
        ints([0, 1, 2, 3]),
        ints(8),
        num_kv_pages_per_compute_block=4,
        num_queries_per_compute_block=8,
    )
    assert xla_compiler.step(result).program.kernels == 1


@pytest.mark.upstream("pytorch/xla#8334")
@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_grouped_matmul(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler, groups: Sequence[int]
) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import gmm

    result = gmm(*(t.to("xla") for t in matrices(groups)), tiling=TILING)
    assert xla_compiler.step(result).program.kernels == 1


@pytest.mark.long
@pytest.mark.upstream("pytorch/xla#8334")
def test_grouped_matmul_backward(start_runtime: StartRuntime, xla_compiler: CaseCompiler) -> None:
    start_runtime(spmd=False)
    import_torchax()
    from torch_xla.experimental.custom_kernel import GMM

    lhs, rhs, sizes = (t.to("xla") for t in matrices(GROUPS["uneven"]))
    leaves = lhs.requires_grad_(), rhs.requires_grad_()
    result = GMM.apply(*leaves, sizes, TILING)
    result.sum().backward()
    assert xla_compiler.step(result, *(leaf.grad for leaf in leaves)).program.kernels == 3


@pytest.mark.upstream("pytorch/xla#8954")
@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x2")
def test_splash_attention(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """Sharded over both slices: three kernels with the backward pass, and nothing crosses."""
    start_runtime(spmd=True)
    import_torchax()
    from torch_xla.experimental import splash_attention as splash

    mesh = hybrid(topology, ("data", "fsdp"))
    problem = Problem(batch=topology.total, queries=512, keys=512, causal=True)
    leaves = leaves_on_tpu(problem)
    for leaf in leaves.values():
        xs.mark_sharding(leaf, mesh, (("data", "fsdp"), None, None, None))
    config = splash.SplashAttentionConfig(mesh=str(mesh))
    result = splash.splash_attention(
        leaves["q"], leaves["k"], leaves["v"], config.to_json(), causal=True
    )
    compiled = xla_compiler.step(result)
    assert compiled.program.kernels == 1
    assert compiled.program.bytes_across == 0


def hybrid(topology: Topology, names: tuple[str, ...]) -> xs.Mesh:
    """Return a mesh with its first axis over the slices and its second over each slice's chips."""
    mesh = xs.HybridMesh(
        ici_mesh_shape=(1, topology.devices), dcn_mesh_shape=(topology.slices, 1), axis_names=names
    )
    xs.set_global_mesh(mesh)
    return mesh


@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x4", "2xv4:2x2x1")
@pytest.mark.parametrize("name", ["plain", "causal", "bf16"])
def test_sharded_flash_attention(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler, name: str
) -> None:
    """The batch over all chips of all slices: the kernel stays one, nothing is exchanged."""
    start_runtime(spmd=True)
    mesh = hybrid(topology, ("slice", "chip"))
    spec = (("slice", "chip"), None, None, None)
    shape = PROBLEMS[name]
    problem = Problem(
        batch=topology.total, queries=512, keys=512, dtype=shape.dtype, causal=shape.causal
    )
    leaves = leaves_on_tpu(problem)
    for leaf in leaves.values():
        xs.mark_sharding(leaf, mesh, spec)
    result = flash(problem, leaves, partition_spec=spec, mesh=mesh)
    xs.mark_sharding(result, mesh, spec)
    program = xla_compiler.step(result).program
    assert (program.kernels, program.collectives, program.transfers) == (1, (), ())


@pytest.mark.long
@pytest.mark.topologies("2xv6e:2x2", "2xv5e:2x2", "2xv4:2x2x1", "v6e:2x4")
def test_training_step(
    topology: Topology, start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """Data parallel over slices and chips: between slices go the gradients, once, and no more.

    A slice reduces and scatters them first, so that each device sends its part of each gradient.
    """
    start_runtime(spmd=True)
    mesh = hybrid(topology, ("slice", "chip")) if topology.slices > 1 else line(topology)
    batch = ("slice", "chip") if topology.slices > 1 else "chip"
    spec = (batch, None, None, None)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return training.flash(q, k, v, partition_spec=spec, mesh=mesh)

    model = training.block(attention).to("xla")
    for parameter in model.parameters():
        xs.mark_sharding(parameter, mesh, (None,) * parameter.dim())
    x, y = (
        torch.cat([t] * topology.total)[: 2 * topology.total].to("xla") for t in training.batch()
    )
    for tensor in (x, y):
        xs.mark_sharding(tensor, mesh, (batch, None, None))
    loss = (model(x) - y).square().mean()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=training.RATE).step()
    gradients = sum(4 * parameter.numel() for parameter in model.parameters())
    program = xla_compiler.step(loss, *model.parameters()).program
    assert program.kernels == 3
    if topology.slices == 1:
        assert program.bytes_across == 0
    else:
        assert gradients // topology.devices <= program.bytes_across <= 1.25 * gradients
        assert set(program.kinds_across) == {"ALL_REDUCE"}


def line(topology: Topology) -> xs.Mesh:
    mesh = xs.Mesh(list(range(topology.total)), (topology.total,), ("chip",))
    xs.set_global_mesh(mesh)
    return mesh


def test_unsupported_block_is_refused(
    start_runtime: StartRuntime, xla_compiler: CaseCompiler
) -> None:
    """A block that is not a multiple of the TPU's tiles is refused; one that is compiles."""
    start_runtime(spmd=False)
    import jax
    from jax.experimental import pallas as pl
    from torch_xla.experimental.custom_kernel import jax_import_guard, make_kernel_from_pallas

    jax_import_guard()

    def copy(x: Any, out: Any) -> None:
        out[...] = x[...]

    def compiled(columns: int) -> Compilation:
        def call(x: Any) -> Any:
            block = pl.BlockSpec((8, columns), lambda i: (0, i))
            return pl.pallas_call(
                copy,
                jax.ShapeDtypeStruct(x.shape, x.dtype),
                grid=(2,),
                in_specs=[block],
                out_specs=block,
            )(x)

        kernel = make_kernel_from_pallas(call, lambda x: [(x.shape, x.dtype)])
        return xla_compiler.step(kernel(torch.randn(8, 2 * columns).to("xla")))

    assert compiled(128).program.kernels == 1
    with pytest.raises((ValueError, RefusedError), match=r"divisible by 8 and 128"):
        compiled(100)
