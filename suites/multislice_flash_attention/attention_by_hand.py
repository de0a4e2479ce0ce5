"""Attention with every option of JAX's kernels, and its gradients, in float64 in NumPy alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Answer:
    """The result, the logarithm of the weights' sum, and the gradients."""

    result: Array
    logsumexp: Array
    gradients: dict[str, Array]


def attention(  # noqa: PLR0913 - the options of JAX's kernels
    q: Array,
    k: Array,
    v: Array,
    gradient: Array,
    allowed: Array,
    *,
    bias: Array | None = None,
    scale: float = 1.0,
    cap: float | None = None,
    sinks: Array | None = None,
) -> Answer:
    """Return attention of arrays [..., length, width] for queries that share no head.

    Args:
        q: the queries.
        k: the keys.
        v: the values.
        gradient: of the result.
        scale: of the scores.
        allowed: which keys each query may see; what may be seen nowhere makes the result zero.
        bias: is added to the scores before they are scaled.
        cap: of the scores.
        sinks: a score for each head, whose weight has no value.
    """
    q, k, v, gradient = (array.astype(np.float64) for array in (q, k, v, gradient))
    plain = (q @ k.swapaxes(-1, -2) + (0 if bias is None else bias)) * scale
    tanh = np.zeros_like(plain) if cap is None else np.tanh(plain / cap)
    scores = np.where(allowed, plain if cap is None else cap * tanh, -np.inf)
    sink = np.full(scores.shape[:-2], -np.inf) if sinks is None else sinks.astype(np.float64)
    sink = sink[..., None]
    largest = np.maximum(scores.max(-1), sink)
    weights = np.exp(scores - largest[..., None])
    total = weights.sum(-1) + np.exp(sink - largest)
    weights /= total[..., None]
    of_weights = gradient @ v.swapaxes(-1, -2)
    result = weights @ v
    of_scores = weights * (of_weights - (gradient * result).sum(-1, keepdims=True))
    of_plain = of_scores * (1 - tanh**2) * scale
    gradients = {
        "q": of_plain @ k,
        "k": of_plain.swapaxes(-1, -2) @ q,
        "v": weights.swapaxes(-1, -2) @ gradient,
        "bias": of_plain,
        "sinks": -(np.exp(sink - largest) / total * (result * gradient).sum(-1)).sum(-1),
    }
    return Answer(result, largest + np.log(total), gradients)
