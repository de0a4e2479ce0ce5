"""Softmax attention and its gradients in float64, in NumPy alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Arrays = tuple[npt.NDArray[np.float64], ...]


@dataclass(frozen=True)
class Attention:
    """Queries, keys, values and the result's gradient, each [batch, heads, length, width]."""

    batch: int = 2
    heads: int = 4
    length: int = 256
    width: int = 128
    causal: bool = True

    @property
    def scale(self) -> float:
        """Of the scores."""
        return float(self.width**-0.5)

    def arrays(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Return queries, keys, values and the result's gradient."""
        random = np.random.default_rng(8812)
        shape = self.batch, self.heads, self.length, self.width
        return tuple(random.standard_normal(shape, np.float32) for _ in range(4))

    def expected(self, allowed: npt.NDArray[np.bool_] | None = None) -> Arrays:
        """Return the result, and the gradients of queries, keys and values.

        ``allowed`` has which keys each query may see, [length, length], instead of ``causal``.
        """
        q, k, v, out_gradient = (array.astype(np.float64) for array in self.arrays())
        scores = q @ k.swapaxes(-1, -2) * self.scale
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        elif self.causal:
            scores += np.triu(np.full((self.length, self.length), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        of_weights = out_gradient @ v.swapaxes(-1, -2)
        of_scores = of_weights - (of_weights * weights).sum(-1, keepdims=True)
        of_scores *= weights * self.scale
        return (
            weights @ v,
            of_scores @ k,
            of_scores.swapaxes(-1, -2) @ q,
            weights.swapaxes(-1, -2) @ out_gradient,
        )
