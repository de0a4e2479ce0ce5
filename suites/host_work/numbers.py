"""What the steps compute, in NumPy and float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Sequence[Mapping[str, Array]]

_STEP = 1e-6  # of the difference quotients
# So fast that a weight moves as far as it is large: its rounding hides nothing of a gradient.
RATE = 10.0


def check_descent(weights: Sequence[Any], parts: Sequence[Any], updated: Any, loss: Any) -> None:
    """Raise AssertionError unless a step of gradient descent did what it is to do.

    The losses of all parts are added up, and so are their gradients, which each part's weights
    move by. They are compared along two directions, with central differences of the loss.

    Args:
        weights: of each part of the batch, before the step: each layer's.
        parts: of the batch, each [batch, length, width].
        updated: the weights after it, of each part.
        loss: as the step has it.
    """
    before, after = list(map(_layers, weights)), list(map(_layers, updated))
    batches = [np.asarray(part, np.float64) for part in parts]
    pairs = list(zip(before, batches, strict=True))
    np.testing.assert_allclose(loss, sum(_loss(*pair) for pair in pairs), rtol=1e-5)
    chance = np.random.default_rng(0)
    products, expected = list[list[float]](), list[list[float]]()
    for number, layer in enumerate(before[0]):
        for name, weight in layer.items():
            moved = zip(before, after, strict=True)
            gradients = [(b[number][name] - a[number][name]) / RATE for b, a in moved]
            for _ in range(2):
                direction = chance.normal(size=weight.shape)
                along = sum(_along(*pair, number, name, direction) for pair in pairs)
                products.append([float((gradient * direction).sum()) for gradient in gradients])
                expected.append([along] * len(before))
    np.testing.assert_allclose(products, expected, rtol=1e-5, atol=2e-7)


def _along(weights: Weights, x: Array, number: int, name: str, direction: Array) -> float:
    """How fast the loss grows when one weight goes that way."""

    def moved(far: float) -> float:
        layers = [dict(layer) for layer in weights]
        layers[number][name] = layers[number][name] + far * direction
        return _loss(layers, x)

    return (moved(_STEP) - moved(-_STEP)) / (2 * _STEP)


def _layers(weights: Any) -> list[dict[str, Array]]:
    """Of one mapping for all layers, as a scan has it, one for each."""
    if isinstance(weights, Mapping):
        (count,) = {len(stack) for stack in weights.values()}
        weights = [{name: stack[n] for name, stack in weights.items()} for n in range(count)]
    return [{name: np.asarray(w, np.float64) for name, w in each.items()} for each in weights]


def _loss(weights: Weights, x: Array) -> float:
    for each in weights:
        x = _layer(x, each)
    return float((x * x).mean())


def _layer(x: Array, p: Mapping[str, Array]) -> Array:
    h = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    q, k, v = (np.einsum("bld,dhe->bhle", h, p[name], optimize=True) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bhle,hed->bld", weights @ v, p["out"], optimize=True)
    up = x @ p["up"]
    smooth = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up * up * up)))
    return np.asarray(x + smooth @ p["down"])
