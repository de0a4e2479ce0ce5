"""TorchTPU's own ways to JAX's kernels: operators, splash attention, and kernels over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch

from harness.lanes.events import EventLog
from harness.model.topology import Target
from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention.in_pytorch import (
    check_step,
    in_each_process,
    kernels_of,
    step,
)
from suites.multislice_flash_attention.problems import (
    Problem,
    assert_close,
    expected,
    inputs,
)

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("2x1"),
    pytest.mark.upstream("pytorch/xla#8812", "pytorch/xla#8850"),
]
# Most differ from an earlier one in one thing, which the operator must not take for the same.
IN_TURN = {
    "full": Problem(),
    "causal": Problem(causal=True),
    "scaled": Problem(causal=True, scale=-0.3),
    "batch": Problem(batch=2, causal=True),
    "bf16": Problem(batch=2, causal=True, dtype=torch.bfloat16),
    "segments": Problem(batch=2, segments=True),
    "bias": Problem(batch=2, bias=True),
}
SPLASH = {
    "full": Problem(),
    "causal": Problem(causal=True),
    "scaled": Problem(causal=True, scale=0.3),
    "window": Problem(causal=True, window=40),
    "narrower": Problem(causal=True, window=39),
    "grouped": Problem(heads=4, kv_heads=2, causal=True),
    "one-kv-head": Problem(heads=4, kv_heads=1, causal=True),
    "bf16": Problem(causal=True, dtype=torch.bfloat16),
}


@pytest.fixture(autouse=True)
def needs_jax() -> None:
    """TorchTPU does not require it; imported here, it is not imported by each rank."""
    pytest.importorskip("jax")


class Splash:
    """TorchTPU's splash attention, which builds an operator for each set of options."""

    def __init__(self, ways: Mapping[str, Any]) -> None:
        self._ways = ways

    def flash(self, problem: Problem, leaves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        from torch_tpu._internal.ops.splash_attention import splash_sdpa

        result: torch.Tensor = splash_sdpa(
            *(leaves[name] for name in "qkv"),
            scale=problem.scale,
            is_causal=problem.causal,
            local_window_size=problem.window,
            enable_gqa=problem.kv_heads is not None,
            **self._ways,
        )
        return result


@pytest.mark.deadline(120)
@pytest.mark.parametrize("problems", [IN_TURN, SPLASH], ids=["flash", "splash"])
def test_one_function_in_turn(
    xla_target: Target,
    tpu_events: EventLog,
    start_runtime: StartRuntime,
    subtests: pytest.Subtests,
    problems: Mapping[str, Problem],
) -> None:
    """Sizes, dtypes, static arguments and arguments that may be None; with gradients."""
    kernels: Any = kernels_of(xla_target) if problems is IN_TURN else Splash({})

    def ask(device: str) -> dict[str, dict[str, torch.Tensor]]:
        return {name: step(kernels, problem, device) for name, problem in problems.items()}

    processes = in_each_process(ask, xla_target, start_runtime, deadline=110)
    tpu_events.expect_discoveries(1)
    for name, problem in problems.items():
        with subtests.test(name):
            check_step([values[name] for values in processes], problem)


Spec = Sequence[str | tuple[str, ...] | None]
SPECS: dict[str, Spec] = {
    "batch": ("data",),
    "heads": (None, "model"),
    "batch-heads": ("data", "model"),
    "heads-batch": ("model", "data"),
    "batch-over-both": (("data", "model"),),
}


def operator(
    name: str, function: Callable[..., Any], mesh: Any, spec: Spec, *, arrays: int = 3
) -> Callable[..., Any]:
    """PyTorch's operator of JAX's function of the shards of so many arrays, on a rank."""
    import jax
    from torch_tpu._internal.pallas import jax_op

    partition = jax.sharding.PartitionSpec(*spec)
    sharded = jax.shard_map(
        function, mesh=mesh, in_specs=(partition,) * arrays, out_specs=partition, check_vma=False
    )

    def of_ranks(q, k, v):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return sharded(q, k, v)

    def of_one(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return sharded(x)

    implementation = of_one if arrays == 1 else of_ranks  # TorchTPU reads how many there are
    names = implementation.__code__.co_varnames[:arrays]
    implementation.__annotations__ = dict.fromkeys((*names, "return"), jax.Array)
    made: Callable[..., Any] = jax_op(
        f"xla_harness::{name}",
        implementation,
        mesh=mesh,
        input_partition_specs=(partition,) * arrays,
        output_partition_specs=(partition,),
    )
    return made


def shard(tensor: torch.Tensor, spec: Spec, place: Mapping[str, tuple[int, int]]) -> torch.Tensor:
    """Return a rank's part; ``place`` is its position and the number of ranks along each axis."""
    for dimension, named in enumerate(spec):
        for axis in (named,) if isinstance(named, str) else named or ():
            position, count = place[axis]
            tensor = tensor.chunk(count, dimension)[position]
    return tensor


@pytest.mark.topologies("2x2")
@pytest.mark.parametrize("spec", SPECS)
def test_sharded(
    xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime, spec: str
) -> None:
    """Each rank gives its part of the inputs, and gets its part of the result."""
    problem, world = Problem(batch=4, heads=4, causal=True), xla_target.topology.total
    host = inputs(problem)
    places = [{"data": (rank // 2, 2), "model": (rank % 2, 2)} for rank in range(world)]

    def ask(device: str) -> torch.Tensor:
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
        from torch_tpu._internal.pallas.mesh import get_pallas_mesh

        attend = partial(flash_attention, causal=True, sm_scale=problem.scale)
        called = operator(
            "sharded", attend, get_pallas_mesh(("data", "model"), (2, 2)), SPECS[spec]
        )
        place = places[torch.distributed.get_rank()]
        parts = [shard(host[name], SPECS[spec], place).contiguous() for name in "qkv"]
        result: torch.Tensor = called(*(part.to(device) for part in parts))
        return result.cpu()

    ranks = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    oracle, _ = expected(problem)  # not before the fork: it starts threads
    for rank, result in enumerate(ranks):
        part = shard(oracle, SPECS[spec], places[rank])
        assert_close(result, part, problem.dtype, f"rank {rank}")


@pytest.mark.topologies("2x2")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 2, 1)], ids=["in-order", "shuffled"])
def test_sequence_parallel(
    xla_target: Target,
    tpu_events: EventLog,
    start_runtime: StartRuntime,
    order: tuple[int, ...],
) -> None:
    """Ranks exchange their part of the sequence for heads, attend, and exchange it back.

    Which rank is where on the mesh decides: a key of another place is masked in another way.
    """
    problem, spec = Problem(heads=4, causal=True), (None, None, "ranks")
    host = inputs(problem)
    places = [{"ranks": (order.index(rank), len(order))} for rank in range(len(order))]

    def attend(q: Any, k: Any, v: Any) -> Any:
        import jax
        from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

        def exchange(x: Any, given: int, taken: int) -> Any:
            return jax.lax.all_to_all(x, "ranks", given, taken, tiled=True)

        whole = flash_attention(
            *(exchange(x, 1, 2) for x in (q, k, v)), causal=True, sm_scale=problem.scale
        )
        return exchange(whole, 2, 1)

    def ask(device: str) -> torch.Tensor:
        import jax
        from torch_tpu._internal.pallas.mesh import get_pallas_mesh

        devices = get_pallas_mesh("ranks").devices[np.array(order)]
        called = operator("sequence", attend, jax.sharding.Mesh(devices, ("ranks",)), spec)
        place = places[torch.distributed.get_rank()]
        parts = [shard(host[name], spec, place).contiguous() for name in "qkv"]
        result: torch.Tensor = called(*(part.to(device) for part in parts))
        return result.cpu()

    ranks = in_each_process(ask, xla_target, start_runtime)
    tpu_events.expect_discoveries(1)
    oracle, _ = expected(problem)
    for rank, result in enumerate(ranks):
        assert_close(result, shard(oracle, spec, places[rank]), problem.dtype, f"rank {rank}")


def test_compiled(xla_target: Target, tpu_events: EventLog, start_runtime: StartRuntime) -> None:
    """Between other operations of one compiled graph."""
    kernels, problem = kernels_of(xla_target), Problem(causal=True)
    host = inputs(problem)

    def ask(device: str) -> torch.Tensor:
        leaves = {name: tensor.to(device) for name, tensor in host.items()}

        def around(q: torch.Tensor) -> torch.Tensor:
            return kernels.flash(problem, leaves | {"q": q / 2}) + 1

        return torch.compile(around, backend="tpu", fullgraph=True)(leaves["q"] * 2).cpu()

    for result in in_each_process(ask, xla_target, start_runtime):
        assert_close(result, expected(problem)[0] + 1, problem.dtype, "output")
    tpu_events.expect_discoveries(1)


# Options that change how it is computed, and not what.
WAYS: dict[str, dict[str, Any]] = {
    "small-blocks": {
        "block_q": 128,
        "block_kv": 128,
        "block_kv_compute": 128,
        "block_dkv": 128,
        "block_kv_dkv_compute": 128,
    },
    "two-kernels-back": {"use_fused_bwd_kernel": False, "block_q_dq": 128, "block_kv_dq": 128},
    "one-after-another-back": {"use_vmap_bwd": False},
    "sequence-last": {"q_layout": "SEQ_MINOR", "k_layout": "SEQ_MINOR", "v_layout": "SEQ_MINOR"},
}


@pytest.mark.long
@pytest.mark.deadline(120)
def test_ways_of_splash(
    xla_target: Target, start_runtime: StartRuntime, subtests: pytest.Subtests
) -> None:
    """Blocks, layouts and ways of the backward pass do not change the numbers."""
    problem, kernels = Problem(batch=2, queries=256, keys=256, causal=True), cast("Any", Splash)

    def ask(device: str) -> dict[str, dict[str, torch.Tensor]]:
        from torch_tpu._internal.ops.splash_attention import splash_sdpa

        q, kv = torch.ones(1, 4, 128, 64, device=device), torch.ones(1, 2, 128, 64, device=device)
        for tensors, grouped in (((q, kv, kv), False), ((q, q, q), True)):
            with pytest.raises(ValueError, match=rf"enable_gqa \({grouped}\) does not match"):
                splash_sdpa(*tensors, enable_gqa=grouped)
        with pytest.raises(ValueError, match="Unknown layout: HEADS"):
            splash_sdpa(q, q, q, k_layout="HEADS")
        return {name: step(kernels(way), problem, device) for name, way in WAYS.items()}

    processes = in_each_process(ask, xla_target, start_runtime, deadline=110)
    for name in WAYS:
        with subtests.test(name):
            check_step([values[name] for values in processes], problem)


@pytest.mark.topologies("4")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_kernel_copies_to_the_next_rank(
    xla_target: Target, start_runtime: StartRuntime, *, compiled: bool
) -> None:
    """A remote copy inside of a kernel, which finds its rank by the axis of the mesh."""
    world = xla_target.topology.total
    parts = torch.arange(world * 8 * 128, dtype=torch.float32).view(world, 8, 128)

    def ask(device: str) -> torch.Tensor:
        from torch_tpu._internal.pallas.mesh import get_pallas_mesh

        send = operator("send", _to_the_next, get_pallas_mesh(("x",), (world,)), ("x",), arrays=1)

        def step(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = send(x) + 1
            return result

        called = torch.compile(step, fullgraph=True, dynamic=False) if compiled else step
        return called(parts[torch.distributed.get_rank()].to(device)).cpu()

    ranks = in_each_process(ask, xla_target, start_runtime)
    for rank, result in enumerate(ranks):
        assert_close(result, parts[rank - 1].double() + 1, torch.float32, f"rank {rank}")


def _to_the_next(x: Any) -> Any:
    import jax
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu

    def send(x: Any, out: Any, sent: Any, received: Any) -> None:
        next_one = (jax.lax.axis_index("x") + 1) % jax.lax.axis_size("x")
        copy = tpu.make_async_remote_copy(
            src_ref=x,
            dst_ref=out,
            send_sem=sent,
            recv_sem=received,
            device_id=(next_one,),
            device_id_type=pallas.DeviceIdType.MESH,
        )
        copy.start()
        copy.wait()

    return pallas.pallas_call(
        send, out_shape=x, scratch_shapes=(tpu.SemaphoreType.DMA, tpu.SemaphoreType.DMA)
    )(x)
