"""The kernels that JAX ships, divided over two slices in shard_map, without torch.

Batches are divided over the slices and heads over the devices of each, as on a job of several
slices; experts' rows over all devices.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.events import EventLog
from harness.model.topology import Topology
from harness.platforms import PLATFORMS, platform_here
from suites.multislice_flash_attention import ragged
from suites.shared.attention import Attention
from suites.shared.jax_releases import jitted, needs_tpu_interpret_mode

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("2x2"),
    pytest.mark.upstream("pytorch/xla#8850"),
    pytest.mark.deadline(60),
]


@pytest.fixture
def mesh(tpu_events: EventLog) -> Any:
    """Slices, and the devices of each; the client is an event of the case."""
    del tpu_events
    from jax.experimental.mesh_utils import create_hybrid_device_mesh
    from jax.sharding import Mesh

    return Mesh(create_hybrid_device_mesh((1, 2), (2, 1), jax.devices()), ("slice", "device"))


def over_slices(
    mesh: Any, fn: Callable[..., Any], given: tuple[Any, ...], result: Any
) -> Callable[..., Any]:
    """``fn`` of parts by these partition specs, each a tuple of axes."""
    from jax.sharding import PartitionSpec

    return jitted(fn, mesh, tuple(PartitionSpec(*axes) for axes in given), PartitionSpec(*result))


def flash(attention: Attention) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    return partial(flash_attention, causal=attention.causal, sm_scale=attention.scale)


def splash(attention: Attention) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.CausalMask if attention.causal else masks.FullMask
    head = mask((attention.length, attention.length))
    here = masks.MultiHeadMask([head] * (attention.heads // 2))
    fn = jax.vmap(kernel.make_splash_mha(here, head_shards=1, q_seq_shards=1))
    return lambda q, k, v: fn(q * attention.scale, k, v)


def plain(attention: Attention) -> Callable[..., Any]:
    return _product(attention, "xla")


def cudnn(attention: Attention) -> Callable[..., Any]:
    return _product(attention, "cudnn")


def _product(attention: Attention, implementation: str) -> Callable[..., Any]:
    """JAX's own attention, of arrays [batch, length, heads, width]; cuDNN takes no float32."""
    dtype = np.float16 if implementation == "cudnn" else np.float32

    def fn(*arrays: Any) -> Any:
        given = (array.astype(dtype).swapaxes(1, 2) for array in arrays)
        result = jax.nn.dot_product_attention(
            *given, is_causal=attention.causal, implementation=implementation
        )
        return result.swapaxes(1, 2).astype(np.float32)

    return fn


def triton(attention: Attention) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.gpu.attention import mha

    def fn(*arrays: Any) -> Any:  # of 32-bit numbers its blocks exceed an H100's shared memory
        given = (array.astype(np.float16).swapaxes(1, 2) for array in arrays)
        result = mha(*given, None, attention.scale, attention.causal)
        return result.swapaxes(1, 2).astype(np.float32)

    return fn


EVERYWHERE = pytest.mark.lanes("virtual-*")
PRECISION: dict[Callable[..., Any], float] = {cudnn: 1e-2, triton: 1e-2}  # of float16
OF_PLATFORM = {flash: "tpu", splash: "tpu", cudnn: "gpu", triton: "gpu"}


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return what computes attention, of which some are for one platform only."""
    here = platform_here().name
    if (own := OF_PLATFORM.get(request.param, here)) != here:
        pytest.skip(f"a kernel for {PLATFORMS[own].title}s")
    return request.param


KERNELS = pytest.mark.parametrize("kernel", [plain, *OF_PLATFORM], indirect=True)


@KERNELS
@EVERYWHERE
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention(
    mesh: Any, tpu_events: EventLog, kernel: Callable[..., Any], causal: bool
) -> None:
    attention = Attention(causal=causal)
    spec = ("slice", "device")
    fn = over_slices(mesh, kernel(attention), (spec,) * 3, spec)
    result = fn(*attention.arrays()[:3])
    error = PRECISION.get(kernel, 1e-4)
    np.testing.assert_allclose(result, attention.expected()[0], rtol=10 * error, atol=error)
    assert {shard.data.shape for shard in result.addressable_shards} == {(1, 2, 256, 128)}
    tpu_events.expect_discoveries(1 if platform_here().name == "tpu" else 0)
    events = tpu_events.read()
    assert len(events.of("client", by="jax")) == 1
    fn(*attention.arrays()[:3]).block_until_ready()
    again = tpu_events.read().after(events)
    assert not again.of("client"), "a client in the second step"
    assert not again.of("compile"), "a program, and so communicators, in the second step"


@KERNELS
@pytest.mark.lanes("*-aot")
@pytest.mark.topologies("2xv6e:2x2", "2xh100:4")
def test_compiles(
    topology: Topology, xla_compiler: CaseCompiler, kernel: Callable[..., Any]
) -> None:
    """One kernel of the vendor's compiler, which exchanges nothing; XLA's own has none."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    attention, spec = Attention(), ("slice", "device")
    devices = np.array(xla_compiler.devices).reshape(topology.slices, 2, -1)
    mesh = Mesh(devices, (*spec, "copies"))
    x = jax.ShapeDtypeStruct(
        attention.arrays()[0].shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*spec))
    )
    fn = over_slices(mesh, kernel(attention), (spec,) * 3, spec)
    program = xla_compiler.jax(fn, x, x, x).program
    assert (program.collectives, program.transfers) == ((), ())
    assert program.kernels == (kernel not in (plain, cudnn))
    assert any("cudnn$fmha" in name for name in program.operations) == (kernel is cudnn)


@pytest.mark.long
@KERNELS
@EVERYWHERE
def test_gradients(mesh: Any, kernel: Callable[..., Any], subtests: pytest.Subtests) -> None:
    attention = Attention()
    spec = ("slice", "device")
    fn = over_slices(mesh, kernel(attention), (spec,) * 3, spec)
    *given, out_gradient = attention.arrays()
    _, pullback = jax.vjp(fn, *given)
    _, *expected = attention.expected()
    error = PRECISION.get(kernel, 1e-3)
    for name, gradient, oracle in zip("qkv", pullback(out_gradient), expected, strict=True):
        with subtests.test(gradient=name):
            np.testing.assert_allclose(gradient, oracle, rtol=error, atol=error)


@EVERYWHERE
@pytest.mark.topologies(1)
@pytest.mark.parametrize("kernel", [plain, flash, cudnn, triton], indirect=True)
def test_on_one_device(kernel: Callable[..., Any]) -> None:
    """What a machine with one device can be asked."""
    attention = Attention()
    with jax.default_matmul_precision("highest"):  # a card would take TF32
        result = jax.jit(kernel(attention))(*attention.arrays()[:3])
    error = PRECISION.get(kernel, 1e-4)
    np.testing.assert_allclose(result, attention.expected()[0], rtol=10 * error, atol=error)


@pytest.mark.parametrize("sizes", [(64, 64), (100, 28), (0, 128)], ids=["even", "uneven", "empty"])
def test_grouped_matmul(mesh: Any, topology: Topology, sizes: tuple[int, ...]) -> None:
    """Each device multiplies rows of its own, in groups of other sizes than its neighbor's."""
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    random = np.random.default_rng(8334)
    rows = random.standard_normal((topology.total * 128, 128), np.float32)
    matrices = random.standard_normal((2, 128, 256), np.float32)
    groups = np.concatenate([np.roll(sizes, n) for n in range(topology.total)]).astype(np.int32)
    parts = (("slice", "device"),)
    product = partial(gmm, preferred_element_type=np.float32, tiling=(64, 128, 128))
    result = over_slices(mesh, product, (parts, (), parts), parts)(rows, matrices, groups)
    expected = np.concatenate(
        [
            rows[n * 128 : (n + 1) * 128].astype(np.float64)[own] @ matrices[group]
            for n in range(topology.total)
            for group, own in enumerate(_groups(groups[2 * n : 2 * n + 2]))
        ]
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)


def _groups(sizes: np.ndarray) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@needs_tpu_interpret_mode
@pytest.mark.parametrize("batch", [ragged.BATCHES["mixed"], ragged.BATCHES["window"]])
def test_ragged_paged_attention(mesh: Any, batch: ragged.Batch) -> None:
    """Heads over the devices of a slice, with their part of each page; the slices do the same."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    attention = partial(
        ragged_paged_attention,
        sm_scale=ragged.Batch.SCALE,
        sliding_window=batch.window,
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
    )
    heads = (None, "device", None)
    given = (heads, (None, None, "device", None), (), (), (), ())
    result = over_slices(mesh, attention, given, heads)(*ragged.arguments(batch))
    ragged.assert_close(np.asarray(result)[: sum(batch.new)], batch)
