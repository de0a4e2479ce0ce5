"""torch_xla's kernels as operators of PyTorch, and what it computes without a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_xla.debug import metrics

from harness.session.fixtures import StartRuntime
from suites.multislice_flash_attention import ragged
from suites.multislice_flash_attention.grouped import GROUPS, matrices
from suites.multislice_flash_attention.grouped import expected as grouped
from suites.multislice_flash_attention.torchax_without_flax import import_torchax
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies("1x1"),
    pytest.mark.upstream("pytorch/xla#8850", "pytorch/xla#8334"),
    since_2_9,
]


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_shapes_without_data(start_runtime: StartRuntime) -> None:
    """What torch.compile asks the operators for, of tensors that have no numbers."""
    start_runtime(spmd=False)
    import torch_xla.experimental.custom_kernel  # noqa: F401  (registers them)

    ops, ints = torch.ops.xla, torch.int32
    q, pages = _meta(2, 4, 128), _meta(2, 8, 16, 128)
    lengths, indices = _meta(2, dtype=ints), _meta(2, 4, dtype=ints)
    x, w, scale = _meta(8, 16), _meta(32, 16, dtype=torch.int8), _meta(32)
    lhs, rhs, sizes = _meta(6, 4), _meta(3, 4, 5), _meta(3, dtype=ints)
    results = {
        "flash": (ops.flash_attention(*[_meta(1, 2, 8, 4)] * 3), (1, 2, 8, 4)),
        "paged": (ops.paged_attention(q, pages, pages, lengths, indices, 2), (2, 4, 128)),
        "queries": (
            ops.multi_queries_paged_attention(
                _meta(2, 3, 4, 128), pages, pages, lengths, indices, lengths, 2, 8, True
            ),
            (2, 3, 4, 128),
        ),
        "ragged": (
            ops.ragged_paged_attention(
                q, _meta(8, 16, 4, 128), lengths, indices, _meta(3, dtype=ints), _meta(1)
            ),
            (2, 4, 128),
        ),
        "gmm": (ops.gmm(lhs, rhs, sizes), (6, 5)),
        "gmm-transposed": (ops.gmm(lhs, rhs.mT, sizes, transpose_rhs=True), (6, 5)),
        "quantized": (ops.quantized_matmul_int8(x, w, scale), (8, 32)),
    }
    assert {name: tuple(result.shape) for name, (result, _) in results.items()} == {
        name: shape for name, (_, shape) in results.items()
    }
    assert all(result.device.type == "meta" for result, _ in results.values())
    with pytest.warns(UserWarning, match="should only be applied to tensors on XLA device"):
        ops.flash_attention(*[torch.ones(1, 2, 8, 4)] * 3)


def test_grouped_operator(start_runtime: StartRuntime) -> None:
    """The tiling is chosen for the sizes, and need not be given."""
    start_runtime(spmd=False)
    import_torchax()
    import torch_xla.experimental.custom_kernel  # noqa: F401  (registers it)

    groups = GROUPS["uneven"]
    lhs, rhs, sizes = (x.to("xla") for x in matrices(groups))
    host = matrices(groups)
    result = torch.ops.xla.gmm(lhs, rhs, sizes)
    torch.testing.assert_close(
        result.cpu().double(),
        grouped(host[0].double(), host[1].double(), groups),
        rtol=1e-4,
        atol=1e-4,
    )


def test_traced_once(start_runtime: StartRuntime) -> None:
    """A kernel is traced once for all calls of the same shapes and the same scale and mask."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import flash_attention

    def hits(*shape: int, **options: Any) -> tuple[int, torch.Tensor]:
        before = metrics.counter_value("trace_pallas_cache_hit") or 0
        q = torch.ones(shape, device="xla")
        result = flash_attention(q, q, q * 3, **options)
        return (metrics.counter_value("trace_pallas_cache_hit") or 0) - before, result

    calls: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((1, 1, 128, 8), {}),
        ((2, 1, 128, 8), {}),
        ((1, 1, 128, 8), {"sm_scale": 0.5}),
    ]
    assert [hits(*shape, **options)[0] for shape, options in calls] == [0, 0, 0]
    results = [hits(*shape, **options) for shape, options in calls]
    assert [count for count, _ in results] == [1, 1, 1]
    torch.testing.assert_close(results[1][1].cpu(), torch.full((2, 1, 128, 8), 3.0))


def test_quantized_product(start_runtime: StartRuntime) -> None:
    """Without tuned sizes of blocks there is no kernel: the product is XLA's."""
    start_runtime(spmd=False)
    import torch_xla.experimental.custom_kernel  # noqa: F401  (registers it)

    random = torch.Generator().manual_seed(3)
    x = torch.randn(8, 16, generator=random)
    w = torch.randint(-127, 128, (32, 16), generator=random).to(torch.int8)
    scale = torch.rand(32, generator=random)
    result = torch.ops.xla.quantized_matmul_int8(x.to("xla"), w.to("xla"), scale.to("xla"))
    expected = (x.double() @ w.double().T) * scale
    torch.testing.assert_close(result.cpu().double(), expected, rtol=1e-3, atol=1e-2)


def test_types_of_operands(start_runtime: StartRuntime) -> None:
    """JAX's type of the same name, unless there is none."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import to_jax_shape_dtype_struct

    names = [f"{kind}{bits}" for kind in ("float", "int") for bits in (16, 32, 64)]
    names += ["bfloat16", "int8", "uint8", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"]
    for name in names:
        struct = to_jax_shape_dtype_struct(_meta(2, 3, dtype=getattr(torch, name)))
        canonical = name.replace("64", "32")  # which JAX has only if it is asked for them
        assert (struct.shape, str(struct.dtype)) in (((2, 3), name), ((2, 3), canonical))
    with pytest.raises(ValueError, match="Unsupported dtype"):
        to_jax_shape_dtype_struct(_meta(2, dtype=torch.complex64))
    assert torch.ones(2, device="xla").sum().item() == 2


@pytest.mark.parametrize("total", [20, 25, 40])
def test_repeats(start_runtime: StartRuntime, total: int) -> None:
    """Each number so many times; what is too much is cut, what is missing is the last number."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import repeat_with_fixed_output_size

    values, repeats = torch.arange(10) * 3 + 1, torch.tensor([0, 1, 2, 0, 4, 0, 6, 7, 8, 9])
    got = repeat_with_fixed_output_size(values.to("xla"), repeats.to("xla"), total)
    whole = np.repeat(values.numpy(), repeats.numpy())
    expected = np.concatenate([whole, np.full(total, values[-1])])[:total]
    np.testing.assert_array_equal(got.cpu().numpy(), expected)


SCALED = {"scales": {"k_scale": 0.5, "v_scale": 2.0}, "one-scale": {"v_scale": 0.5}}


@pytest.mark.parametrize("name", SCALED)
def test_scales_without_a_kernel(start_runtime: StartRuntime, name: str) -> None:
    """Keys and values that are stored smaller or larger than they are."""
    start_runtime(spmd=False)
    import torch_xla.experimental.custom_kernel  # noqa: F401  (registers it)

    batch, scales = ragged.Batch(window=6, soft_cap=0.7), SCALED[name]
    q, pages, *rest = ragged.arguments(batch)
    stored = pages.copy()
    stored[:, :, 0::2] /= scales.get("k_scale", 1.0)
    stored[:, :, 1::2] /= scales.get("v_scale", 1.0)
    tensors = [torch.from_numpy(array).to("xla") for array in (q, stored, *rest)]
    result = torch.ops.xla.ragged_paged_attention(
        *tensors,
        sm_scale=ragged.Batch.SCALE,
        sliding_window=batch.window,
        soft_cap=batch.soft_cap,
        use_kernel=False,
        **scales,
    )
    ragged.assert_close(result.cpu().numpy()[: sum(batch.new)], batch)


WRONG: dict[str, tuple[dict[int, Any], str]] = {
    "sequences": ({5: [4]}, "must be less or equal to max_num_seqs=3"),
    "pages": ({2: [8, 20, 33]}, "pages_per_seq=2 must be greater or equal to"),
    "tokens": ({4: [0, 8, 9, 17]}, "must be less or equal to max_num_batched_tokens=16"),
    "queries": ({2: [7, 20, 29]}, "must be less or equal to kv_len="),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_sequences(start_runtime: StartRuntime, name: str) -> None:
    """Without the kernel, sequences that can't be are refused."""
    start_runtime(spmd=False)
    from torch_xla.experimental.custom_kernel import ragged_paged_attention

    changed, message = WRONG[name]
    tensors = list(map(torch.from_numpy, ragged.arguments(ragged.Batch())))
    for place, values in changed.items():
        tensors[place] = torch.tensor(values, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*tensors, use_kernel=False)
