"""Attention of numbers of 8 bits on a virtual GPU: what cuDNN takes and returns, in 32 bits."""

from __future__ import annotations

from typing import Any


def attention_of_8_bits(scale: float, is_causal: bool, heads_first: bool) -> Any:  # noqa: FBT001
    """Return the function of queries, keys, values and the factors of each array.

    It returns the output, and the largest weight and output, by which users choose the next
    factors. The gradients of the factors ``amax_`` are the largest gradients.
    https://github.com/jax-ml/jax/blob/jax-v0.10.2/jax/_src/cudnn/fused_attention_stablehlo.py
    """
    import jax
    from jax import numpy as jnp

    of_queries, of_keys = ("bnth", "bnsh") if heads_first else ("btnh", "bsnh")
    heads = of_queries.index("n")

    def weigh(query: Any, key: Any) -> Any:
        key = jnp.repeat(key, query.shape[heads] // key.shape[heads], heads)
        scores = scale * jnp.einsum(f"{of_queries},{of_keys}->bnts", query, key)
        if is_causal:
            scores = jnp.where(jnp.tri(*scores.shape[2:]) > 0, scores, -jnp.inf)
        return jax.nn.softmax(scores)

    def mix(weights: Any, value: Any) -> Any:
        value = jnp.repeat(value, weights.shape[1] // value.shape[heads], heads)
        return jnp.einsum(f"bnts,{of_keys}->{of_queries}", weights, value)

    def forward(query: Any, key: Any, value: Any, factors: Any) -> Any:
        weights = weigh(*_wide(factors, q=query, k=key))
        output = mix(weights, *_wide(factors, v=value))
        return _narrow(output, factors["scale_o"], query), _largest(weights), _largest(output)

    def backward(saved: Any, gradients: Any) -> Any:
        query, key, value, factors = saved
        weights, unweigh = jax.vjp(weigh, *_wide(factors, q=query, k=key))
        _, unmix = jax.vjp(mix, weights, *_wide(factors, v=value))
        of_weights, of_value = unmix(*_wide(factors, dO=gradients[0]))
        exact = {"dV": of_value} | dict(zip(("dQ", "dK"), unweigh(of_weights), strict=True))
        largest = {f"amax_{name}": _largest(array) for name, array in exact.items()}
        return (
            *(
                _narrow(exact[name], factors[f"scale_{name}"], array)
                for name, array in {"dQ": query, "dK": key, "dV": value}.items()
            ),
            dict.fromkeys(factors) | largest | {"amax_dP": _largest(of_weights)},
        )

    attention = jax.custom_vjp(forward)
    attention.defvjp(lambda *arrays: (forward(*arrays), arrays), backward)
    return attention


def _wide(factors: Any, **arrays: Any) -> list[Any]:
    return [array.astype("float32") * factors[f"descale_{n}"] for n, array in arrays.items()]


def _narrow(array: Any, factor: Any, like: Any) -> Any:
    """Return the array in the type of another one; cuDNN's largest number is no infinity."""
    from jax import numpy as jnp

    most = float(jnp.finfo(like.dtype).max)
    return (array * factor).clip(-most, most).astype(like.dtype)


def _largest(array: Any) -> Any:
    return abs(array).max().reshape(1, 1, 1, 1)
