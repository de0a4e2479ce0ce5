"""Operands of a kernel in the form that JAX's interpretation takes.

A custom call has arrays of numbers for operands. A kernel may have been written for random keys,
for an array in VMEM or SMEM, or for a scalar that its function closes over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from harness.lanes.virtual.kernel_jaxprs import (
    equations,
    jaxprs_of,
    with_inner_jaxprs,
    with_jaxprs,
    with_same,
)
from harness.lanes.virtual.kernel_random import KEY, as_key, as_words, generator
from harness.lanes.virtual.kernel_semaphores import is_semaphore


def numbers(aval: Any) -> Any:
    """Return the shape and dtype in which a custom call passes ``aval``."""
    import jax
    import jax.numpy as jnp
    from jax._src import core

    if is_key(aval):
        aval = core.physical_aval(aval)
    if is_semaphore(aval):  # as its count
        return jax.ShapeDtypeStruct(aval.shape, jnp.int32)
    # Mosaic's custom call takes and gives booleans as integers.
    return jax.ShapeDtypeStruct(aval.shape, jnp.int32 if aval.dtype == bool else aval.dtype)


def is_key(aval: Any) -> bool:
    """Return whether ``aval`` is an array of random keys."""
    import jax

    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def without_keys(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kernel's call in which each key of a TPU's generator is a number."""
    if not any(map(_has_keys, jaxprs_of(parameters))):
        return dict(parameters)
    changed = with_jaxprs(parameters, map(_without_keys, jaxprs_of(parameters)))
    if "out_avals" in parameters:
        changed["out_avals"] = tuple(map(_number, parameters["out_avals"]))
    grid = parameters.get("grid_mapping")
    if grid is not None:
        blocks = tuple(block.replace(**_numbers_in(block)) for block in grid.block_mappings)
        changed["grid_mapping"] = grid.replace(block_mappings=blocks)
    return changed


def _has_keys(jaxpr: Any) -> bool:
    variables = (v for equation in equations(jaxpr) for v in equation.invars)
    return any(_holds_keys(v.aval) for v in [*jaxpr.invars, *variables])


def _numbers_in(block: Any) -> dict[str, Any]:
    """Return the types of a block mapping."""
    names = [field.name for field in dataclasses.fields(block) if field.name.endswith("_aval")]
    return {name: _number(getattr(block, name)) for name in names}


def _holds_keys(aval: Any) -> bool:
    """Return whether an array, or the one of a reference, has keys of a TPU's generator."""
    return generator(getattr(aval, "inner_aval", aval)) == KEY


def _number(aval: Any) -> Any:
    """Return a type, of an array or a reference, with numbers in the place of keys."""
    import numpy as np

    if not _holds_keys(aval):
        return aval
    if hasattr(aval, "inner_aval"):
        return aval.update(inner_aval=_number(aval.inner_aval), memory_space=aval.memory_space)
    return aval.update(dtype=np.dtype(np.complex64))


def _without_keys(jaxpr: Any) -> Any:
    from jax._src import core

    same: dict[Any, Any] = {}

    def variable(old: Any) -> Any:
        if isinstance(old, core.Literal) or not _holds_keys(old.aval):
            return old
        return same.setdefault(old, core.Var(_number(old.aval)))

    def changed(effects: Any) -> set[Any]:
        return {e.replace(same[e.input]) if getattr(e, "input", 0) in same else e for e in effects}

    given = {"invars": jaxpr.invars, "outvars": jaxpr.outvars}
    if any(_holds_keys(v.aval) for v in jaxpr.constvars):
        given["constvars"] = jaxpr.constvars
    parts = {name: list(map(variable, each)) for name, each in given.items()}
    if "constvars" in parts and hasattr(jaxpr, "consts"):  # since JAX 0.12
        parts["consts"] = list(jaxpr.consts)
    body = [
        equation.replace(
            invars=list(map(variable, equation.invars)),
            outvars=list(map(variable, equation.outvars)),
            params=with_inner_jaxprs(equation.params, _without_keys),
            effects=changed(equation.effects),
        )
        for equation in jaxpr.eqns
    ]
    return jaxpr.replace(**parts, eqns=body, effects=changed(jaxpr.effects))


def unpinned(aval: Any) -> Any:
    """Return the type of the array in a pinned buffer, or ``aval`` if it is none."""
    from jax._src.state import types

    is_pinned = isinstance(aval, getattr(types, "AbstractLinVal", ()))  # since JAX 0.8
    return aval.inner_aval if is_pinned else aval


def as_operand(array: Any, aval: Any) -> Any:
    """Return the ``array`` of the custom call as the operand that the kernel was lowered for."""
    import jax

    fitted = _fit(array, numbers(aval))
    if generator(aval) == KEY:
        return as_key(fitted)
    if is_key(aval):
        return jax.random.wrap_key_data(fitted, impl=generator(aval))
    return fitted != 0 if aval.dtype == bool else fitted


def as_result(result: Any) -> Any:
    """Return a kernel's result as the numbers that the custom call gives."""
    import jax
    import jax.numpy as jnp

    if is_key(result):
        return jax.random.key_data(result)
    if result.dtype == jnp.complex64:  # no kernel's own, as a TPU's have none
        return as_words(result)
    return result.astype(jnp.int32) if result.dtype == bool else result


def in_its_memory(operand: Any, aval: Any) -> Any:
    """Return an operand of a kernel over cores, marked with the memory that the kernel expects.

    JAX passes scalars and what ``jax.new_ref`` put into VMEM or SMEM without a block specification.
    """
    from jax.experimental.pallas import tpu

    space = _space(aval) if aval.shape or is_key(aval) else tpu.SMEM
    if space not in {tpu.SMEM, tpu.VMEM}:
        return operand
    return tpu.with_memory_space_constraint(operand, space)


def in_one_buffer(parameters: dict[str, Any], operands: int) -> dict[str, Any]:
    """Return a kernel's call whose results in VMEM or SMEM are where their operands are.

    A kernel over cores has such buffers for itself. That of a ``pallas_call`` is a copy, unless the
    array is there.

    Args:
        parameters: those of the primitive.
        operands: how many there are.
    """
    from jax.experimental.pallas import tpu

    aliases = dict(parameters["input_output_aliases"])
    if "jaxprs" not in parameters:
        results = parameters.get("out_avals", ())
        there = [_space(aval) in {tpu.SMEM, tpu.VMEM} for aval in results]
        aliases = {k: result for k, result in aliases.items() if there and there[result]}
        if not aliases:
            return parameters
    changed = (_in_one_buffer(jaxpr, operands, aliases) for jaxpr in jaxprs_of(parameters))
    return with_jaxprs(parameters, changed)


def _in_one_buffer(jaxpr: Any, operands: int, aliases: Mapping[int, int]) -> Any:
    """Return the ``jaxpr`` of a kernel in the form that JAX's interpreter can run.

    The interpreter passes the number of a buffer for each operand, so scalars are read from memory.
    An operand in VMEM or SMEM and the result that takes its place are one buffer on a TPU and two
    in the interpreter, so the kernel uses the operand's, which is copied at the end.

    Args:
        jaxpr: of the kernel, whose parameters are the operands, the results and what it allocates.
        operands: how many there are.
        aliases: the operand in whose memory a result is, by the operand's number.
    """
    from jax._src import core
    from jax._src.state.types import AbstractRef
    from jax.experimental.pallas import tpu

    parameters, reads, copies, same = list(jaxpr.invars), [], [], {}
    for number, scalar in enumerate(parameters[:operands]):
        if not isinstance(scalar.aval, AbstractRef):
            parameters[number] = core.Var(AbstractRef(scalar.aval, tpu.SMEM))
            reads.append(_read(parameters[number], scalar))
    for source, result in aliases.items():
        operand, own = parameters[source], parameters[operands + result]
        if _space(operand.aval) in {tpu.SMEM, tpu.VMEM}:
            same[own] = operand
            value = core.Var(operand.aval.inner_aval)
            copies += [_read(operand, value), _write(own, value)]
    equations = [*reads, *with_same(jaxpr, same).eqns, *copies]
    effects = jaxpr.effects.union(*(equation.effects for equation in [*reads, *copies]))
    return jaxpr.replace(invars=parameters, eqns=equations, effects=effects)


def _space(aval: Any) -> Any:
    return getattr(aval, "memory_space", None)


def _read(reference: Any, value: Any) -> Any:
    """Return the equation that reads a ``value`` from the whole of a reference."""
    import jax
    from jax._src import core
    from jax._src.state import primitives
    from jax._src.state.types import ReadEffect

    whole = {"tree": jax.tree.structure(())}
    return core.new_jaxpr_eqn([reference], [value], primitives.get_p, whole, {ReadEffect(0)})


def _write(reference: Any, value: Any) -> Any:
    """Return the equation that stores a ``value`` in the whole of a reference."""
    import jax
    from jax._src import core
    from jax._src.state import primitives
    from jax._src.state.types import WriteEffect

    whole, before = {"tree": jax.tree.structure(())}, core.Var(value.aval)
    effects = {WriteEffect(0)}
    return core.new_jaxpr_eqn([reference, value], [before], primitives.swap_p, whole, effects)


def _fit(array: Any, expected: Any) -> Any:
    """Return ``array`` with the dimensions that the kernel was lowered for.

    torch_xla passes some operands narrower or wider than JAX lowered them. What is too much is cut
    off; what is missing becomes NaN, so that a kernel that reads it has NaN in its result.
    """
    import jax.numpy as jnp

    if expected.shape == () and array.shape == (1,):  # as Mosaic passes a scalar
        return array[0]
    if array.ndim != len(expected.shape):
        raise ValueError(f"it takes an operand {expected.shape}, the call gives {array.shape}")
    array = array[tuple(slice(size) for size in expected.shape)]
    missing = [(0, size - n) for size, n in zip(expected.shape, array.shape, strict=True)]
    if not any(after for _, after in missing):
        return array
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        raise ValueError(f"it takes {expected.shape} integers, the call gives {array.shape}")
    return jnp.pad(array, missing, constant_values=jnp.nan)
