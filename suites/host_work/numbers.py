"""What the steps compute, in NumPy and float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = Sequence[Mapping[str, Array]]

_STEP = 1e-6  # of the difference quotients
_RATE = 0.1


def check_descent(weights: Any, x: Any, updated: Any, loss: Any, losses: int) -> None:
    """Raise AssertionError unless a step of gradient descent did what it is to do.

    Each weight's gradient is compared along two directions, with central differences of the loss.

    Args:
        weights: before the step, each layer's.
        x: [batch, length, width].
        updated: the weights after it.
        loss: as the step has it.
        losses: how many, each of its own part of the batch, were added up.
    """
    before, after = _layers(weights), _layers(updated)
    batch = np.asarray(x, np.float64)
    np.testing.assert_allclose(loss, losses * _loss(before, batch), rtol=1e-5)
    chance = np.random.default_rng(0)
    found, expected = list[float](), list[float]()
    for number, layer in enumerate(before):
        for name, weight in layer.items():
            gradient = (weight - after[number][name]) / _RATE
            for _ in range(2):
                direction = chance.normal(size=weight.shape)
                found.append(float((gradient * direction).sum()))
                expected.append(losses * _along(before, batch, number, name, direction))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=8e-6)


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
    q, k, v = (np.einsum("bld,dhe->blhe", h, p[name]) for name in "qkv")
    scores = np.einsum("blhe,bmhe->bhlm", q, k) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bhlm,bmhe,hed->bld", weights, v, p["out"])
    up = x @ p["up"]
    smooth = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return np.asarray(x + smooth @ p["down"])
