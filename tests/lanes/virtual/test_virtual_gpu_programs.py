"""Programs that JAX lowers for NVIDIA's libraries, on a virtual GPU, with NumPy as oracle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from harness.job.ranks import run_ranks
from harness.lanes.events import EventLog
from harness.model.topology import Topology

pytestmark = [pytest.mark.lanes("virtual-gpu"), pytest.mark.topologies(2)]

MATRICES = np.random.default_rng(0).normal(size=(2, 5, 5)).astype(np.float32)


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), want, atol=1e-4)


def replaced(log: EventLog) -> set[str]:
    return {event.rewrite for event in log.read().of("rewrite")}


def test_linear_algebra_is_computed_by_lapack(tpu_events: EventLog) -> None:
    import jax
    from jax import numpy as jnp

    def run(function: Callable[..., Any], *given: Any) -> Any:
        return jax.tree.map(np.asarray, jax.jit(function)(*given))

    a = MATRICES
    symmetric = a + a.transpose(0, 2, 1)
    q, r = run(jnp.linalg.qr, a)
    close(q @ r, a)
    close(run(jnp.linalg.solve, a, a[..., :1]), np.linalg.solve(a, a[..., :1]))
    close(run(jnp.linalg.eigvalsh, symmetric), np.linalg.eigvalsh(symmetric))
    close(run(jnp.linalg.svd, a).S, np.linalg.svd(a).S)
    close(np.sort_complex(run(jnp.linalg.eigvals, a)), np.sort_complex(np.linalg.eigvals(a)))
    lower = np.linalg.cholesky(a @ a.transpose(0, 2, 1))
    close(run(jnp.linalg.cholesky, lower @ lower.transpose(0, 2, 1)), lower)
    names = {"geqrf", "householder_product", "lu", "eigh", "svd", "eig"}
    assert {f"{name} as on a CPU" for name in names} <= replaced(tpu_events)


@pytest.mark.parametrize("algorithm", ["JACOBI", "QR"])
def test_an_algorithm_of_cusolver_has_the_results_of_lapack(algorithm: str) -> None:
    from jax import lax

    chosen = getattr(lax.linalg.SvdAlgorithm, algorithm)
    _, values, _ = lax.linalg.svd(MATRICES, algorithm=chosen)
    close(values, np.linalg.svd(MATRICES).S)


@pytest.mark.topologies("2@device")
def test_linear_algebra_in_a_program_of_several_processes(topology: Topology) -> None:
    """It runs in a process of its own, which has not lowered it."""

    def work(_: int) -> Any:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh, spec = Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d")
        x = jax.make_array_from_callback(
            MATRICES.shape, NamedSharding(mesh, spec), lambda at: MATRICES[at]
        )
        total = jax.shard_map(
            lambda x: jax.lax.psum(jax.numpy.linalg.inv(x), "d"),
            mesh=mesh,
            in_specs=spec,
            out_specs=PartitionSpec(),
        )
        return np.asarray(jax.jit(total)(x).addressable_shards[0].data)[0]

    for got in run_ranks(work, topology):
        close(got, np.linalg.inv(MATRICES).sum(0))


@pytest.mark.parametrize("kernel", [False, True])
def test_random_numbers_are_those_of_a_cpu(tpu_events: EventLog, *, kernel: bool) -> None:
    import jax

    jax.config.update("jax_threefry_gpu_kernel_lowering", kernel)
    got = np.asarray(jax.random.bits(jax.random.key(7), (5,)))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        want = np.asarray(jax.random.bits(jax.random.key(7), (5,)))
    np.testing.assert_array_equal(got, want)
    assert replaced(tpu_events) == ({"threefry2x32 as on a CPU"} if kernel else set())


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"local_window_size": (2, 0)}], ids=str
)
def test_attention_of_cudnn_is_computed_and_counted(
    tpu_events: EventLog, options: dict[str, Any]
) -> None:
    import jax
    from jax import numpy as jnp

    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 8, 2, 8)).astype(np.float16)
    options = options | {"is_causal": bool(options)}  # cuDNN has no window without

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)

    scores = np.einsum("btnh,bsnh->bnts", q.astype(float), k.astype(float)) / np.sqrt(8)
    before = np.arange(8)[:, None] - np.arange(8)
    left, _ = options.get("local_window_size", (8, 0))
    if options["is_causal"]:
        scores = np.where((before >= 0) & (before <= left), scores, -np.inf)
    weights = softmax(scores)
    want = np.einsum("bnts,bsnh->btnh", weights, v.astype(float))
    np.testing.assert_allclose(jax.jit(attend)(q, k, v), want, atol=4e-3)
    assert "__cudnn$fmhaSoftmax" in jax.jit(attend).lower(q, k, v).as_text(debug_info=True)
    # Of the sum of the results, the gradient by a value is the sum of its weights.
    gradient = jax.jit(jax.grad(lambda v: attend(q, k, v).astype(jnp.float32).sum()))(v)
    by_value = np.broadcast_to(weights.sum(2).transpose(0, 2, 1)[..., None], v.shape)
    np.testing.assert_allclose(gradient, by_value, atol=2e-2)
    assert replaced(tpu_events) == {"attention of cuDNN"}


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
def test_attention_of_cudnn_over_pages(layout: str) -> None:
    import jax
    from jax._src.cudnn.fused_attention_stablehlo import paged_attention

    def laid_out(array: Any) -> Any:
        return array if layout == "BTNH" else array.transpose(0, 2, 1, 3)

    q, *_ = arrays = np.random.default_rng(0).normal(size=(3, 4, 4, 2, 8)).astype(np.float16)
    tables = np.array([[[2, 0], [1, 3]], [[3, 3], [0, 1]]], np.int32)
    lengths = {"q_seqlen": np.full(2, 4, np.int32), "kv_seqlen": np.full(2, 8, np.int32)}
    k, v = (
        array[table].reshape(2, 8, 2, 8) for array, table in zip(arrays[1:], tables, strict=True)
    )
    paged = {
        f"page_table_{n}": table[:, None, :, None] for n, table in zip("kv", tables, strict=True)
    }
    attended = jax.jit(partial(paged_attention, qkv_layout=layout))(
        *map(laid_out, (q[:2], *arrays[1:])), **lengths, **paged
    )
    weights = softmax(np.einsum("btnh,bsnh->bnts", q[:2].astype(float), k.astype(float)))
    want = np.einsum("bnts,bsnh->btnh", weights, v.astype(float))
    np.testing.assert_allclose(laid_out(attended), want, atol=4e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_cudnn_of_packed_sequences(*, causal: bool) -> None:
    import jax
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 8, 2, 8)).astype(np.float16)
    # Of the rows, the first has two segments with a gap between them, and the second one.
    segments = [(0, 0, 3, 0), (0, 4, 8, 3), (1, 0, 6, 1)]  # with the first of its keys
    sizes, starts = np.array([[3, 4], [6, -1]]), np.array([[0, 4, -1], [0, -1, -1]])
    of_keys = np.array([[0, 3, -1], [1, -1, -1]])
    mask = MaskType.CAUSAL if causal else MaskType.NO_MASK
    attend = partial(dot_product_attention, mask_type=mask)
    attended = jax.jit(attend)(q, k, v, None, None, sizes, sizes, starts, of_keys)
    for row, start, end, first in segments:
        own, theirs = (row, slice(start, end)), (row, slice(first, first + end - start))
        scores = np.einsum("tnh,snh->nts", q[own].astype(float), k[theirs].astype(float))
        if causal:
            scores = np.where(np.tri(end - start, dtype=bool), scores, -np.inf)
        want = np.einsum("nts,snh->tnh", softmax(scores), v[theirs].astype(float))
        np.testing.assert_allclose(attended[own], want, atol=4e-3)


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
def test_attention_of_cudnn_of_8_bit_numbers(tpu_events: EventLog, layout: str) -> None:
    import jax
    from jax import numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    def laid_out(array: Any) -> Any:
        return array if layout == "BTNH" else array.transpose(0, 2, 1, 3)

    random = np.random.default_rng(0).normal(size=(4, 1, 128, 2, 128)) / 4
    q, k, v, by_output = (jnp.asarray(array, jnp.float8_e4m3fn) for array in random)
    factors: Any = {name: np.ones((1, 1, 1, 1), np.float32) for name in cudnn.fp8_params_keys}
    factors |= {"descale_v": factors["descale_v"] * 2, "scale_o": factors["scale_o"] * 16}
    factors |= {"descale_dO": factors["descale_dO"] / 2, "scale_dV": factors["scale_dV"] * 4}
    attend = partial(cudnn.dot_product_attention, use_fp8=True, qkv_layout=layout)
    (output, most_weight, most), pull = jax.vjp(
        jax.jit(lambda *arrays: attend(*arrays[:3], fp8_params=arrays[3])),
        *map(laid_out, (q, k, v)),
        factors,
    )
    of_query, _, of_value, largest = pull((laid_out(by_output), most_weight, most))
    q, k, v, by_output = (np.asarray(array, float) for array in (q, k, 2 * v, by_output))
    weights = softmax(np.einsum("btnh,bsnh->bnts", q, k))
    want = np.einsum("bnts,bsnh->btnh", weights, v)
    wide = partial(np.asarray, dtype=float)
    np.testing.assert_allclose(laid_out(wide(output)), want * 16, atol=0.2, rtol=0.07)
    np.testing.assert_allclose(most_weight.item(), weights.max(), rtol=1e-4)
    np.testing.assert_allclose(most.item(), abs(want).max(), rtol=1e-4)
    by_value = np.einsum("bnts,btnh->bsnh", weights, by_output / 2)
    np.testing.assert_allclose(laid_out(wide(of_value)), by_value * 4, atol=0.05, rtol=0.07)
    by_weights = np.einsum("btnh,bsnh->bnts", by_output / 2, v)
    by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True))
    by_query = np.einsum("bnts,bsnh->btnh", by_scores, k)
    np.testing.assert_allclose(laid_out(wide(of_query)), by_query, atol=0.01, rtol=0.07)
    for name, exact in {"dQ": by_query, "dV": by_value, "dP": by_weights}.items():
        np.testing.assert_allclose(largest[f"amax_{name}"].item(), abs(exact).max(), rtol=1e-4)
    assert replaced(tpu_events) == {"attention of cuDNN"}


# Pairs of a psend and of its precv, which of four devices receive, and what is refused.
ONE_SIDED = {
    "chain": ([(0, 1), (1, 2), (2, 3)], None, ""),
    "cycle": ([(0, 1), (1, 2), (2, 0)], None, "Expected send and recv instructions to have non-c"),
    "other": ([(0, 1)], [(1, 0)], r"Deadlock detected. Last checked instructions: %psend"),
    "shape": ([(0, 1)], None, r"psend of shape \(2,\) to a precv of shape \(3,\)"),
    "alone": ([], [(0, 1)], "Expected send to match recv"),
}


@pytest.mark.topologies(4)
@pytest.mark.parametrize("sent", ONE_SIDED)
def test_what_is_sent_is_received(sent: str) -> None:
    import jax
    from jax import lax
    from jax.sharding import PartitionSpec as P

    if not hasattr(lax, "psend"):
        pytest.skip("this release of JAX has no psend")
    pairs, others, why = ONE_SIDED[sent]
    values = np.arange(8, dtype=np.float32)

    def step(part: Any) -> Any:
        token = lax.psend(part, "x", pairs) if pairs else lax.create_token()
        like = jax.ShapeDtypeStruct((3,) if sent == "shape" else part.shape, part.dtype)
        return lax.precv(token, like, "x", others or pairs)

    mesh = jax.sharding.Mesh(np.array(jax.devices()), "x")
    stepping = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    if why:
        with pytest.raises(jax.errors.JaxRuntimeError, match=why):
            stepping(values)
    else:
        np.testing.assert_array_equal(stepping(values), [0, 0, *values[:6]])


def test_attention_that_only_cudnn_has_is_refused() -> None:
    from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention

    x = np.ones((1, 8, 1, 8), np.float16)
    why = r"^virtual GPU: cuDNN's attention with dropout .* Lane gpu-aot compiles it"
    with pytest.raises(NotImplementedError, match=why):
        dot_product_attention(x, x, x, dropout_rate=0.1)
    with pytest.raises(NotImplementedError, match="Q must be fp16"):  # as with cuDNN itself
        dot_product_attention(x.astype(np.float32), x, x)


def test_a_kernel_for_triton_is_interpreted_and_counted(tpu_events: EventLog) -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def double(x: Any, out: Any) -> None:
        triton.debug_barrier()
        out[...] = x[...] * 2

    def step(x: Any) -> Any:
        block = pl.BlockSpec((2,), lambda n: (n,))
        options = {"grid": 4, "in_specs": [block], "out_specs": block, "name": "doubling"}
        return pl.pallas_call(
            double, out_shape=x, compiler_params=triton.CompilerParams(), **options
        )(x)

    close(jax.jit(step)(np.arange(8.0)), np.arange(8) * 2)
    kernels = [(event.kernel, event.mode) for event in tpu_events.read().of("kernel")]
    assert kernels == [("doubling", "hlo")]


# [5, 6, 7] after an operation on its elements 0, 1, 0 and 2 with 3, 4, 12 and 9, of which the mask
# leaves out the last.
ATOMIC = {
    "add": [20, 10, 7],
    "and": [0, 4, 7],
    "max": [12, 6, 7],
    "min": [3, 4, 7],
    "or": [15, 6, 7],
    "xchg": [12, 4, 7],
    "xor": [10, 2, 7],
}


@pytest.mark.parametrize("operation", ATOMIC)
def test_atomic_operations_of_a_kernel(operation: str) -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    named = f"atomic_{operation}"  # which JAX has moved
    atomic = getattr(triton if hasattr(triton, named) else pl, named)

    def combine(numbers: Any, values: Any, mask: Any, _: Any, out: Any) -> None:
        atomic(out, (numbers[...],), values[...], mask=mask[...])

    numbers, values = np.array([[0, 1, 0, 2], [3, 4, 12, 9]], np.int32)
    call = pl.pallas_call(
        combine,
        out_shape=jax.ShapeDtypeStruct((3,), np.int32),
        input_output_aliases={3: 0},
        compiler_params=triton.CompilerParams(),
    )
    mask = np.array([True, True, True, False])
    combined = jax.jit(call)(numbers, values, mask, np.array([5, 6, 7], np.int32))
    np.testing.assert_array_equal(combined, ATOMIC[operation])


def test_assembly_of_a_kernel_is_computed_where_it_is_a_known_function() -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def kernel(assembly: str) -> Any:
        def apply(x: Any, out: Any) -> None:
            (out[...],) = triton.elementwise_inline_asm(
                assembly, args=[x[...]], constraints="=f,f", pack=1, result_shape_dtypes=[shape]
            )

        options = {"compiler_params": triton.CompilerParams(), "name": "assembled"}
        return jax.jit(pl.pallas_call(apply, out_shape=shape, **options))

    x = np.arange(4, dtype=np.float32)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    close(kernel("tanh.approx.f32 $0, $1;")(x), np.tanh(x))
    why = r"^virtual GPU: Pallas kernel 'assembled' can't be .*: assembly 'mov.b32 \$0, \$1;'\."
    with pytest.raises(RuntimeError, match=why):
        kernel("mov.b32 $0, $1;").lower(x)


def test_a_kernel_that_can_t_be_interpreted_is_refused_by_its_name() -> None:
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def wait(x: Any, out: Any, barrier: Any) -> None:
        plgpu.barrier_wait(barrier)
        out[...] = x[...]

    x = np.arange(8.0, dtype=np.float32)
    call = pl.pallas_call(
        wait,
        out_shape=x,
        scratch_shapes=[plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(),
        name="waiting",
    )
    why = "^virtual GPU: Pallas kernel 'waiting' can't be interpreted .* Lane gpu-aot compiles it"
    with pytest.raises(RuntimeError, match=why):
        jax.jit(call).lower(x)


def test_callbacks_are_called_with_whole_arrays(tpu_events: EventLog) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    seen: list[Any] = []
    mesh = Mesh(np.array(jax.devices()), ("d",))
    x = jax.device_put(np.arange(4.0), NamedSharding(mesh, PartitionSpec("d")))

    def step(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(np.array(v)), x)
        return jax.pure_callback(lambda v: np.array(v) * 2, x, x)

    close(jax.jit(step)(x), np.arange(4) * 2)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen, [np.arange(4)])
    assert replaced(tpu_events) == {"send to the host", "receive from the host"}


@pytest.mark.parametrize("count", [1, 2])
def test_a_callback_is_called_on_each_part(count: int) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    parts, whole = [], []

    def noted(x: Any) -> Any:
        jax.debug.callback(lambda part: parts.append(np.asarray(part)), x * 2, partitioned=True)
        jax.debug.callback(lambda array: whole.append(np.asarray(array)), x)
        return x + 1

    mesh = Mesh(np.array(jax.devices()[:count]), ("d",))
    x = jax.device_put(np.arange(4), NamedSharding(mesh, PartitionSpec("d")))
    np.testing.assert_array_equal(jax.jit(noted)(x), np.arange(1, 5))
    jax.effects_barrier()
    expected = np.split(np.arange(4) * 2, count)
    np.testing.assert_array_equal(sorted(parts, key=lambda part: part[0]), expected)
    np.testing.assert_array_equal(whole, [np.arange(4)])


def test_a_callback_on_each_part_in_order_is_refused() -> None:
    import jax

    why = r"^virtual GPU: a callback on each part of an array .* Call it in jax\.shard_map"
    noted = jax.jit(lambda x: jax.debug.callback(print, x, ordered=True, partitioned=True))
    with pytest.raises(NotImplementedError, match=why):
        noted.lower(np.ones(2))


def test_refusals_speak_of_gpus() -> None:
    import jax

    shape = jax.ShapeDtypeStruct((2,), np.float32)
    unknown = jax.jit(jax.ffi.ffi_call("nobody_has_this", shape))
    with pytest.raises(Exception, match="nobody_has_this") as refused:
        unknown()
    why = "virtual GPU: XLA's CPU compiler, which compiles for it, can't do this; a GPU may."
    assert f"{why} Lane gpu-aot asks the CUDA plugin's compiler" in str(refused.value)
    with pytest.raises(Exception, match="No such compile option") as refused:
        jax.jit(lambda x: x).lower(shape).compile(compiler_options={"xla_no": "1"})
    assert "Lane gpu-aot asks the CUDA plugin; leave it out here" in str(refused.value)


def test_options_of_gpus_are_counted(tpu_events: EventLog) -> None:
    import jax

    lowered = jax.jit(lambda x: x + 1).lower(np.ones(2))
    lowered.compile(compiler_options={"xla_gpu_of_tomorrow": True})(np.ones(2))
    assert [event.option for event in tpu_events.read().of("option")] == ["xla_gpu_of_tomorrow"]


def divided_sums() -> Any:
    """Return a function of rows that custom_partitioning divides, a collective among it."""
    import jax
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import NamedSharding, PartitionSpec

    def divide(mesh: Any, _: Any, result: Any) -> Any:
        name = mesh.axis_names[0]
        shardings = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(name))
        return mesh, lambda x: jax.lax.psum(x.sum(0), name), shardings[0], shardings[1:]

    sums = custom_partitioning(lambda x: x.sum(0))
    sums.def_partition(divide, sharding_rule="i j -> j")
    return sums


@pytest.mark.topologies(2, "2@device")
def test_functions_are_divided_as_their_authors_say(topology: Topology) -> None:
    def work(_: int) -> Any:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("d",))
        x = jax.make_array_from_callback(
            (2, 5), NamedSharding(mesh, PartitionSpec("d")), lambda at: MATRICES[0, :2][at]
        )
        compiled = jax.jit(lambda x: divided_sums()(x * 2) + 1).lower(x).compile()
        return np.asarray(compiled(x)), "all-reduce" in compiled.as_text()

    results = run_ranks(work, topology) if topology.processes else [work(0)]
    for sums, exchanged in results:
        close(sums, MATRICES[0, :2].sum(0) * 2 + 1)
        assert exchanged


def test_a_function_that_is_divided_wrongly_is_an_error() -> None:
    import jax
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    def divide(mesh: Any, given: Any, result: Any) -> Any:
        return mesh, lambda x: x[:, :1], result.sharding, (given[0].sharding,)

    wrong = custom_partitioning(lambda x: x * 2)
    wrong.def_partition(divide, sharding_rule="i j -> i j")
    mesh = Mesh(np.array(jax.devices()), ("d",))
    x = jax.device_put(MATRICES[0, :2], NamedSharding(mesh, PartitionSpec("d")))
    with pytest.raises(Exception, match="Mismatch in result shapes"):
        jax.jit(wrong)(x)


def test_the_sharding_of_an_array_within_a_program_is_told(tpu_events: EventLog) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    shardings: list[Any] = []

    def inspected(x: Any) -> Any:
        jax.debug.inspect_array_sharding(x * 2, callback=shardings.append)
        return x + 1

    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
    close(jax.jit(inspected)(jax.device_put(MATRICES[0, :2], sharding)), MATRICES[0, :2] + 1)
    assert [each.is_equivalent_to(sharding, 2) for each in shardings] == [True]
    assert replaced(tpu_events) == {"InspectSharding"}


@pytest.mark.topologies(4)
def test_values_are_broadcast_from_a_device(tpu_events: EventLog) -> None:
    import jax
    from jax.sharding import Mesh, PartitionSpec

    def of_second(x: Any) -> Any:
        return jax.lax.pbroadcast(x, "b", 1)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    spec = PartitionSpec(("a", "b"))
    x = np.arange(8, dtype=np.float32)
    sent = jax.jit(jax.shard_map(of_second, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    np.testing.assert_array_equal(sent, [2, 3, 2, 3, 6, 7, 6, 7])
    assert replaced(tpu_events) == {"collective-broadcast"}
