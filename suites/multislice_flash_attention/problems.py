"""Attention problems: their inputs, what torch_xla makes of them, and the float64 answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# float32: the kernel sums blocks in another order than the oracle. bfloat16: results, and the
# probabilities before they meet the values, are rounded to 8 bits, so to 2**-9 of each; a gradient
# sums such errors over 128 keys.
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 4e-2},
}


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """One attention to compute: tensors of [batch, heads, queries or keys, width]."""

    batch: int = 1
    heads: int = 2
    queries: int = 128
    keys: int = 128
    width: int = 128
    dtype: torch.dtype = torch.float32
    causal: bool = False
    scale: float = 0.1
    segments: bool = False
    bias: bool = False
    kv_heads: int | None = None  # of the keys and values; as many as of the queries
    window: int | None = None  # keys before a query's own that it may see; all


def inputs(problem: Problem) -> dict[str, torch.Tensor]:
    """Host tensors ``q``, ``k``, ``v``, the result's gradient ``do``, and perhaps ``bias``."""
    p = problem
    random = torch.Generator().manual_seed(8812)
    shapes = {
        "q": (p.batch, p.heads, p.queries, p.width),
        "k": (p.batch, p.kv_heads or p.heads, p.keys, p.width),
        "v": (p.batch, p.kv_heads or p.heads, p.keys, p.width),
        "do": (p.batch, p.heads, p.queries, p.width),
    }
    if p.bias:
        shapes["bias"] = (p.batch, p.heads, p.queries, p.keys)
    return {n: torch.randn(s, generator=random).to(p.dtype) for n, s in shapes.items()}


def segment_ids(problem: Problem, length: int) -> torch.Tensor:
    """int32 [batch, length]: four segments of uneven length, others in each batch element."""
    ends = torch.tensor([0.2, 0.45, 0.7]) * length
    position = torch.arange(length)[None] + 5 * torch.arange(problem.batch)[:, None]
    return (position[..., None] > ends).sum(-1).int()


def softmax_attention(problem: Problem, host: Tensors) -> torch.Tensor:
    """softmax((q @ k.T + bias) * scale) @ v in float64, with what may not be seen masked out."""
    return _weights(problem, host) @ _of_each_head(problem, host["v"].double())


def _of_each_head(problem: Problem, shared: torch.Tensor) -> torch.Tensor:
    """Keys or values as each query head sees them."""
    return shared.repeat_interleave(problem.heads // shared.shape[1], dim=1)


def _shared(problem: Problem, gradient: torch.Tensor) -> torch.Tensor:
    """Sum the gradient of keys or values over the query heads that share them."""
    return gradient.unflatten(1, (problem.kv_heads or problem.heads, -1)).sum(2)


def _weights(problem: Problem, host: Tensors) -> torch.Tensor:
    scores = host["q"].double() @ _of_each_head(problem, host["k"].double()).mT
    if problem.bias:  # before the scale, as in JAX's mha_reference
        scores = scores + host["bias"].double()
    scores = scores * problem.scale
    if problem.causal:
        hidden = torch.ones(problem.queries, problem.keys, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if problem.window is not None:
        far = torch.ones(problem.queries, problem.keys, dtype=torch.bool).tril(-problem.window - 1)
        scores = scores.masked_fill(far, -torch.inf)
    if problem.segments:
        mine = segment_ids(problem, problem.queries)[:, None, :, None]
        theirs = segment_ids(problem, problem.keys)[:, None, None, :]
        scores = scores.masked_fill(mine != theirs, -torch.inf)
    return torch.softmax(scores, dim=-1)


def expected(problem: Problem) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the result and the gradients of its inputs, in float64.

    Without autograd, whose engine starts TorchTPU's client, after which no process can be forked.
    """
    host = {name: tensor.double() for name, tensor in inputs(problem).items()}
    k, v = (_of_each_head(problem, host[name]) for name in "kv")
    weights, do = _weights(problem, host), host["do"]
    of_weights = do @ v.mT
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    of_product = of_scores * problem.scale
    gradients = {
        "q": of_product @ k,
        "k": _shared(problem, of_product.mT @ host["q"]),
        "v": _shared(problem, weights.mT @ do),
    }
    if problem.bias:
        gradients["bias"] = of_product
    return weights @ v, gradients


def leaves_on_tpu(problem: Problem) -> dict[str, torch.Tensor]:
    """Return the inputs on the device; all but ``do`` require a gradient."""
    host = inputs(problem)
    return {name: t.to("xla").requires_grad_(name != "do") for name, t in host.items()}


def flash(problem: Problem, leaves: Tensors, **sharding: Any) -> torch.Tensor:
    """torch_xla's flash attention of the leaves; not executed yet."""
    from torch_xla.experimental.custom_kernel import flash_attention

    segments = [None, None]
    if problem.segments:
        lengths = problem.queries, problem.keys
        segments = [segment_ids(problem, length).to("xla") for length in lengths]
    if problem.bias:  # torch_xla 2.4 does not know the argument
        sharding["ab"] = leaves["bias"]
    return flash_attention(
        *(leaves[name] for name in "qkv"), problem.causal, *segments, problem.scale, **sharding
    )


def assert_close(value: torch.Tensor, oracle: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    """Compare with the tolerance of ``dtype``, in which the value must be."""
    assert value.dtype == dtype, f"{name}: dtype {value.dtype}, expected {dtype}"
    torch.testing.assert_close(
        value.detach().cpu().double(),
        oracle,
        **TOLERANCE[dtype],
        msg=lambda text: f"{name}: {text}",
    )


def assert_all_close(
    pairs: Iterable[tuple[str, torch.Tensor | None, torch.Tensor]], dtype: torch.dtype
) -> None:
    """Compare each named value with its oracle; the error has all that differ, not only the first.

    Raises AssertionError.
    """
    wrong = []
    for name, value, oracle in pairs:
        try:
            assert value is not None, f"{name}: there is none"
            assert_close(value, oracle, dtype, name)
        except AssertionError as error:
            wrong.append(str(error))
    if wrong:
        raise AssertionError("\n".join(wrong))
