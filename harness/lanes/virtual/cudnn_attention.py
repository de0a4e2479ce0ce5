"""cuDNN's attention on a virtual GPU: what cuDNN takes, computed by JAX's own reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.lanes import events
from harness.lanes.virtual import in_own_words
from harness.lanes.virtual.eight_bit_attention import attention_of_8_bits

_TRANSPOSED = (0, 2, 1, 3)
_ARRAYS = ("query", "key", "value", "bias", "q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets")
_REFUSAL = (
    "cuDNN's attention with {} is not computed here. Lane gpu-aot compiles it;"
    " jax.nn.dot_product_attention with implementation='xla' runs on both"
)


def compute_by_reference(cudnn: Any) -> None:
    """Have JAX's module of cuDNN's attention compute it as ``implementation="xla"`` does.

    JAX still checks shapes and types as it does before it calls cuDNN.
    """
    signature = inspect.signature(cudnn._dot_product_attention)
    check = cudnn.check_is_flash_attention
    checked = inspect.signature(check).parameters

    def attention(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        has_bias, _ = given["variadic_args"]
        stated = given | {"has_bias": has_bias, "is_training": False}
        check(**{name: value for name, value in stated.items() if name in checked})
        if without := _not_computed(given, cudnn.MaskType.ALIBI):
            raise NotImplementedError(in_own_words(_REFUSAL.format(without)))
        axis = 2 if given["layout"] == cudnn.AttentionLayout.BNTH.value else 1
        for name in ("key", "value"):
            if _is_given(table := given.get(f"page_table_{name[0]}")):
                given[name] = _unpaged(given[name], table, axis)
        events.note("rewrite", rewrite="attention of cuDNN")
        return _differentiable(partial(_reference, given, cudnn))(
            *(given[name] for name in _ARRAYS if name in given)
        )

    def fp8(*given: Any) -> Any:
        *arrays, factors, scale, is_causal, layout, version = given
        cudnn.check_is_flash_attention_fp8(*arrays, layout, version, is_training=False)
        events.note("rewrite", rewrite="attention of cuDNN")
        heads_first = layout == cudnn.AttentionLayout.BNTH.value
        return attention_of_8_bits(scale, is_causal, heads_first)(*arrays, factors)

    cudnn._dot_product_attention = attention
    cudnn._dot_product_attention_fp8 = fp8


def _not_computed(given: dict[str, Any], alibi: Any) -> str:
    """Return what is asked for that the reference lacks; "" for nothing."""
    lacks = {
        "dropout": given["dropout_rate"] > 0,
        "ALiBi": given["mask_type"] == alibi,
        "a function of the scores": given.get("score_mod") is not None,
    }
    return next((name for name, is_asked in lacks.items() if is_asked), "")


def _unpaged(pages: Any, table: Any, axis: int) -> Any:
    """Return the rows of each sequence along an axis, of which a table numbers the pages."""
    import jax

    rows = jax.numpy.moveaxis(pages[table[:, 0, :, 0]], 1, axis)
    return rows.reshape(*rows.shape[:axis], -1, *rows.shape[axis + 2 :])


def _is_given(array: Any) -> bool:
    return array is not None and array.size > 0


def _differentiable(function: Callable[..., Any]) -> Any:
    """Return a function that is also differentiated with JAX's usual options.

    Those of the user's are for their own programs. Operations have the names of cuDNN's calls, by
    which tests see that it was chosen.
    """
    import jax

    @contextmanager
    def usual_options(call: str) -> Iterator[None]:
        promotion = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
        with promotion[0], promotion[1], jax.named_scope(call):
            yield

    def usual(*arrays: Any) -> Any:
        with usual_options("__cudnn$fmhaSoftmax"):
            return function(*arrays)

    def backward(arrays: Any, gradient: Any) -> Any:
        with usual_options("__cudnn$fmhaSoftmaxBackward"):
            return jax.vjp(function, *arrays)[1](gradient)

    differentiable = jax.custom_vjp(usual)
    differentiable.defvjp(lambda *arrays: (usual(*arrays), arrays), backward)
    return differentiable


def _reference(given: dict[str, Any], cudnn: Any, *arrays_given: Any) -> Any:
    import jax

    # cuDNN, too, adds in 32 bits. A product of numbers of two types has no gradient with strict
    # promotion of types, which is the user's option where the program is lowered.
    *arrays, bias = (array.astype("float32") for array in arrays_given[:4])
    queries, keys, *starts = arrays_given[4:]
    heads_first = given["layout"] == cudnn.AttentionLayout.BNTH.value
    has_bias, has_gradient = given["variadic_args"]
    if not has_gradient:  # cuDNN has none for some shapes
        bias = jax.lax.stop_gradient(bias)
    if heads_first:
        arrays = [array.transpose(_TRANSPOSED) for array in arrays]
    width = max(array.shape[-1] for array in arrays)
    if any(array.shape[-1] < width for array in arrays):  # as of latent attention, which has two
        arrays = [_padded(array, width) for array in arrays]
    mask, window = given["mask_type"], given["sliding_window_length"]
    options: dict[str, Any] = {}
    is_causal = mask in (cudnn.MaskType.CAUSAL, cudnn.MaskType.PADDING_CAUSAL)
    if starts and _is_given(starts[0]):
        options["mask"] = _of_segments(arrays, (queries, keys), starts, is_causal=is_causal)
        is_causal = False  # within each segment
    elif cudnn.has_padding(mask):
        options["query_seq_lengths"] = queries.astype("int32")
        options["key_value_seq_lengths"] = keys.astype("int32")
    if window is not None:
        options["local_window_size"] = (window - 1, 0)
    if given.get("return_residual"):
        options["return_residual"] = True
    results = jax.nn.dot_product_attention(
        *arrays,
        bias=bias if has_bias else None,
        scale=given["scale"],
        is_causal=is_causal,
        implementation="xla",
        **options,
    )
    output, *statistics = results if given.get("return_residual") else (results,)
    output = output[..., : arrays_given[2].shape[-1]].astype(arrays_given[0].dtype)
    output = output.transpose(_TRANSPOSED) if heads_first else output
    # cuDNN returns the statistics with the heads first, in 32 bits.
    others = [each.transpose(0, 2, 1).astype("float32") for each in statistics]
    return (output, *others) if others else output


def _of_segments(arrays: Any, sizes: Any, starts: Any, *, is_causal: bool) -> Any:
    """Return which keys a query attends to: those of its own segment in a row of several."""
    import jax

    places, inside = [], []  # of each row, segment and token
    for array, size, start in zip(arrays[:2], sizes, starts, strict=True):
        first = start[:, : size.shape[1], None]  # without the end of the last segment
        place = jax.numpy.arange(array.shape[1]) - first
        places.append(place)
        inside.append((first >= 0) & (place >= 0) & (place < size[..., None]))
    pairs = inside[0][..., :, None] & inside[1][..., None, :]
    if is_causal:
        pairs &= places[0][..., :, None] >= places[1][..., None, :]
    return pairs.any(axis=1)[:, None]


def _padded(array: Any, width: int) -> Any:
    import jax

    return jax.numpy.pad(array, [(0, 0)] * 3 + [(0, width - array.shape[-1])])
