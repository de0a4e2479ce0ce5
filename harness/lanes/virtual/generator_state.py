"""Random numbers of a TPU's generator where nothing calls Python: its state is in a buffer.

In HLO interpret mode a kernel is one program. It gets one more scratch buffer, which holds the
generator's key and how many numbers it has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from harness.lanes.virtual import kernel_random
from harness.lanes.virtual.kernel_jaxprs import equations

_CALLS = {"pjit", "jit", "closed_call"}


def with_state(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``pallas_call`` of a kernel whose generator is in a scratch buffer.

    Raises:
        NotImplementedError: it is over several cores, or takes bits within another operation than
            a loop, a branch or a call.
    """
    import jax
    import numpy as np
    from jax._src import linear_util as lu
    from jax._src.interpreters import partial_eval
    from jax._src.state.types import AbstractRef
    from jax.experimental.pallas import tpu

    if "jaxpr" not in parameters:
        raise NotImplementedError("random bits of a TPU in a kernel over cores")
    jaxpr, grid = parameters["jaxpr"], parameters["grid_mapping"]
    state = AbstractRef(jax.core.ShapedArray((3,), np.dtype(np.uint32)), tpu.SMEM)

    def body(*references: Any) -> Sequence[Any]:
        return _run(references[-1], jaxpr, (), *references[:-1])

    info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    avals = [*(variable.aval for variable in jaxpr.invars), state]
    with grid.trace_env():
        traced, *_ = partial_eval.trace_to_jaxpr_dynamic(lu.wrap_init(body, debug_info=info), avals)
    if hasattr(grid, "scratch_avals"):  # since JAX 0.8
        grid = grid.replace(scratch_avals=(*grid.scratch_avals, state))
    else:
        grid = grid.replace(num_scratch_operands=grid.num_scratch_operands + 1)
    return {**parameters, "jaxpr": traced, "grid_mapping": grid}


def _run(state: Any, jaxpr: Any, constants: Sequence[Any], *operands: Any) -> Sequence[Any]:
    """Do what a jaxpr does in the kernel that is traced now, and return its results."""
    from jax._src.core import Literal

    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *operands], strict=True))

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        results = _do(state, jaxpr.debug_info, equation, list(map(value, equation.invars)))
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(value, jaxpr.outvars))


def _do(state: Any, info: Any, equation: Any, operands: Sequence[Any]) -> Any:
    """Do what an equation does, and return its results."""
    import jax
    from jax._src import core

    name, parameters = equation.primitive.name, equation.params
    if name == kernel_random.SEED:
        _seed(state, operands)
        return []
    if name == kernel_random.BITS:
        return [_bits(state, parameters["shape"])]

    def run(closed: Any, *operands: Any) -> Sequence[Any]:
        return _run(state, closed.jaxpr, closed.consts, *operands)

    if (meaning := kernel_random.meaning_of(equation)) is not None:
        return run(jax.make_jaxpr(partial(meaning, **parameters))(*operands), *operands)
    inner = [e for jaxpr in core.jaxprs_in_params(parameters) for e in equations(jaxpr)]
    if any(map(kernel_random.is_random, inner)):
        return _do_inner(run, name, parameters, operands)
    pairs = zip(equation.invars, operands, strict=True)
    values = {v: operand for v, operand in pairs if isinstance(v, core.Var)}
    alone = core.Jaxpr([], list(values), equation.outvars, [equation], debug_info=info)
    return core.eval_jaxpr(alone, (), *values.values())


def _do_inner(
    run: Callable[..., Any], name: str, parameters: Mapping[str, Any], operands: Sequence[Any]
) -> Any:
    """Do what an equation with jaxprs of its own does, where ``run`` does what these do."""
    from jax import lax

    if name == "cond":
        index, *rest = operands
        return lax.switch(index, [partial(run, each, *rest) for each in parameters["branches"]])
    if name == "while":
        first = parameters["cond_nconsts"]
        last = first + parameters["body_nconsts"]
        return lax.while_loop(
            lambda carry: run(parameters["cond_jaxpr"], *operands[:first], *carry)[0],
            lambda carry: tuple(run(parameters["body_jaxpr"], *operands[first:last], *carry)),
            tuple(operands[last:]),
        )
    if name == "scan":
        return _scan(run, parameters, operands)
    if name in _CALLS:
        return run(parameters["jaxpr"], *operands)
    raise NotImplementedError(f"random bits of a TPU within {name}")


def _scan(run: Callable[..., Any], parameters: Mapping[str, Any], operands: Sequence[Any]) -> Any:
    from jax import lax

    if "ft_in" in parameters:  # since JAX 0.12
        constants, first, stacked = parameters["ft_in"].update(operands).unpack()
    else:
        ends = [parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]]
        constants, first, stacked = operands[: ends[0]], operands[slice(*ends)], operands[ends[1] :]

    def step(carry: Any, each: Any) -> Any:
        results = run(parameters["jaxpr"], *constants, *carry, *each)
        return tuple(results[: len(first)]), tuple(results[len(first) :])

    options = {name: parameters[name] for name in ("length", "reverse")}
    carry, results = lax.scan(step, tuple(first), tuple(stacked), **options)
    return [*carry, *results]


def _seed(state: Any, numbers: Sequence[Any]) -> None:
    import jax.numpy as jnp
    from jax import lax

    words: list[Any] = []
    for number in map(jnp.asarray, numbers):
        if number.dtype == jnp.complex64:
            words += list(kernel_random.as_words(number).reshape(-1))
        else:
            words += list(lax.bitcast_convert_type(number, jnp.uint32).reshape(-1))
    state[0], state[1] = kernel_random.key(words, jnp.uint32(0))
    state[2] = jnp.uint32(0)


def _bits(state: Any, shape: Sequence[int]) -> Any:
    import jax.numpy as jnp
    from jax import lax

    counts = state[2] + lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    state[2] = state[2] + jnp.uint32(math.prod(shape))
    numbers = kernel_random.numbers(state[0], state[1], counts)
    return lax.bitcast_convert_type(numbers, jnp.int32)
