"""Random numbers that a TPU makes in hardware: others here, the same whenever the seed is the same.

JAX's TPU interpret mode has zeros for them, and its memories hold numbers, not keys. A key of a
TPU's generator is two words: there it is a complex64, which is the only dtype of 64 bits that JAX
always has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from harness.lanes.virtual.kernel_calls import InPython

SEED, BITS = "prng_seed", "prng_random_bits"
KEY, STATEFUL = "pallas_tpu", "_pallas_internal_stateful"  # generators

_Place = tuple[int, int]  # device, core


def call_for(equation: Any) -> InPython | None:
    """Return what an equation calls if it seeds a core's generator or takes bits from it."""
    if equation.primitive.name == BITS:
        return InPython(partial(_bits, equation.params["shape"]))
    return InPython(_seed) if equation.primitive.name == SEED else None


def is_random(equation: Any) -> bool:
    """Return whether an equation uses a core's generator or a key of one."""
    return equation.primitive.name in {SEED, BITS} or meaning_of(equation) is not None


def key(words: Iterable[Any], zero: Any) -> tuple[Any, Any]:
    """Return the key that a seed makes, of unsigned words of 32 bits in NumPy or JAX."""
    first = second = zero
    for word in words:
        first, second = _mixed(first ^ word), _mixed(second + word + _constant(0x9E3779B9))
    return first, second


def numbers(first: Any, second: Any, counts: Any) -> Any:
    """Return the numbers that a key gives for counts, as unsigned words of 32 bits."""
    return _mixed(_mixed(counts ^ first) + second)


def _mixed(words: Any) -> Any:
    """Mix the bits of each word, as the hash ``lowbias32`` does."""
    words = (words ^ words >> _constant(16)) * _constant(0x7FEB352D)
    words = (words ^ words >> _constant(15)) * _constant(0x846CA68B)
    return words ^ words >> _constant(16)


def _constant(number: int) -> Any:
    import numpy as np

    return np.uint32(number)


def _generators(memory: Any) -> dict[_Place, Any]:
    """Return the generator of each core, which the interpreter's memory keeps."""
    own: dict[_Place, Any] = vars(memory).setdefault("generators", {})
    return own


def _seed(memory: Any, place: _Place, *given: Any) -> Any:
    import numpy as np

    words = np.concatenate([np.atleast_1d(number).view(np.uint32) for number in given])
    state = [*key(words[:, None], np.zeros(1, np.uint32)), np.zeros(1, np.uint32)]
    _generators(memory)[place] = state
    return np.int32(0)


def _bits(shape: tuple[int, ...], memory: Any, place: _Place) -> Any:
    import numpy as np

    if place not in _generators(memory):
        raise ValueError("a kernel takes random bits before pltpu.prng_seed")
    first, second, count = _generators(memory)[place]
    counts = count + np.arange(math.prod(shape), dtype=np.uint32)
    _generators(memory)[place] = [first, second, count + np.uint32(counts.size)]
    return numbers(first, second, counts).view(np.int32).reshape(shape)


# --- Keys


def generator(aval: Any) -> str:
    """Return the name of the generator that an array's keys are for; "" if it has none."""
    return str(getattr(getattr(getattr(aval, "dtype", None), "_impl", None), "name", ""))


def as_key(words: Any) -> Any:
    """Return the numbers that stand for keys of (1, 2) words each."""
    import jax.numpy as jnp
    from jax import lax

    halves = lax.bitcast_convert_type(words, jnp.float32)
    return lax.complex(halves[..., 0, 0], halves[..., 0, 1])


def as_words(keys: Any) -> Any:
    """Return the words of keys."""
    import jax.numpy as jnp
    from jax import lax

    halves = jnp.stack([lax.real(keys), lax.imag(keys)], axis=-1)[..., None, :]
    return lax.bitcast_convert_type(halves, jnp.uint32)


def meaning_of(equation: Any) -> Callable[..., Any] | None:
    """Return what an operation on keys is; None for an operation on others."""
    name = equation.primitive.name
    if name == "random_bits" and generator(equation.invars[0].aval) == STATEFUL:
        return _stateful_bits
    if name == "prng_join":
        return lambda *words, impl: as_key(_stack(words).reshape(impl.key_shape))
    takes_key = any(str(getattr(v.aval, "dtype", "")) == "complex64" for v in equation.invars[:1])
    return _ON_KEYS.get(name) if takes_key else None


def _stack(words: Any) -> Any:
    import jax.numpy as jnp

    return jnp.stack(words).astype(jnp.uint32)


def _own_bits(shape: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax
    from jax._src.pallas.mosaic import primitives

    return lax.bitcast_convert_type(primitives.prng_random_bits(shape), jnp.uint32)


def _stateful_bits(_: Any, *, bit_width: int, shape: Any) -> Any:
    del bit_width  # of which there is one
    return _own_bits(shape)


def _bits_of(key: Any, *, bit_width: int, shape: Any) -> Any:
    from jax._src.pallas.mosaic import primitives

    if key.size != 1 or bit_width != 32:
        raise NotImplementedError("random bits of several keys at once, or other than 32 bits")
    primitives.prng_seed(key.reshape(()))
    return _own_bits(shape).reshape(*key.shape, *shape)


def _fold_in(key: Any, data: Any) -> Any:
    """Mix a number into a key, as JAX does."""
    first, second = as_words(key).reshape(2)
    second += data
    first += second
    second = first ^ (second << 13 | second >> 19)
    return as_key(_stack([first, second]).reshape(1, 2))


_ON_KEYS: Mapping[str, Callable[..., Any]] = {
    "random_bits": _bits_of,
    "random_fold_in": _fold_in,
    "prng_split": lambda key: list(as_words(key).reshape(2)),
}
