"""Jaxprs of Pallas kernels, read and changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from harness.lanes.virtual import kernel_primitives, kernel_random, kernel_reports
from harness.lanes.virtual.kernel_calls import InPython, python_call


def jaxprs_of(parameters: Mapping[str, Any]) -> Sequence[Any]:
    """Return the jaxprs that a call runs: one of ``pallas_call``, one a mesh of ``mpmd_map``."""
    return parameters["jaxprs"] if "jaxprs" in parameters else [parameters["jaxpr"]]


def with_jaxprs(parameters: Mapping[str, Any], jaxprs: Iterable[Any]) -> dict[str, Any]:
    """Return the parameters of a call that runs other jaxprs."""
    if "jaxprs" in parameters:
        return {**parameters, "jaxprs": tuple(jaxprs)}
    (jaxpr,) = jaxprs
    return {**parameters, "jaxpr": jaxpr}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a jaxpr, with those of the jaxprs in it."""
    from jax._src.core import jaxprs_in_params

    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def with_same(jaxpr: Any, same: Mapping[Any, Any]) -> Any:
    """Return a jaxpr whose equations use other variables in the place of some."""
    from jax._src import core

    changed = [
        equation.replace(
            invars=[same.get(v, v) if isinstance(v, core.Var) else v for v in equation.invars]
        )
        for equation in jaxpr.eqns
    ]
    return jaxpr.replace(eqns=changed)


# --- What JAX's TPU interpreter lacks


Meaning = Callable[..., Any] | InPython  # the function takes operands and parameters
_MeaningOf = Callable[[Any], Meaning | None]


def known(jaxpr: Any, meaning: _MeaningOf) -> Any:
    """Return a jaxpr with the same meaning, of operations that JAX's TPU interpreter knows.

    What follows a ``jax.empty_ref`` becomes the scope of its memory. A copy that selects one of
    several references becomes a branch for each. Operations of a SparseCore on references become
    loads, stores and what ``kernel_primitives`` makes of their values.

    Args:
        jaxpr: of a kernel.
        meaning: returns what takes the place of an equation, for reasons of the kernel's own.
    """
    if not any(_is_unknown(equation, meaning) for equation in equations(jaxpr)):
        return jaxpr
    info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    body = [_known_equation(e, info, meaning) for e in jaxpr.eqns if not _is_hint(e)]
    results = jaxpr.outvars
    for n, allocation in reversed(list(enumerate(body))):
        if allocation.primitive.name == _ALLOCATION:
            scope = _scope(info, allocation.outvars, body[n + 1 :], results)
            body[n:], results = [scope], scope.outvars
    return jaxpr.replace(eqns=body, outvars=results)


_ALLOCATION = "empty_ref"  # since JAX 0.10
_READ = "semaphore_read"
_COPIES = {"dma_start", "dma_wait"}


def _is_unknown(equation: Any, meaning: _MeaningOf) -> bool:
    return (
        equation.primitive.name in {_ALLOCATION, _READ}
        or _is_hint(equation)
        or _is_adding(equation)
        or _own(equation, meaning) is not None
        or bool(_selections(equation))
        or _has_rows(equation)
    )


def _own(equation: Any, meaning: _MeaningOf) -> Meaning | None:
    """Return what takes the place of an equation, or None."""
    return (
        meaning(equation)
        or kernel_random.call_for(equation)
        or kernel_random.meaning_of(equation)
        or kernel_reports.call_for(equation)
        or kernel_primitives.on_references().get(equation.primitive)
    )


def _is_adding(equation: Any) -> bool:
    return equation.primitive.name == "dma_start" and bool(equation.params.get("add"))


def _is_hint(equation: Any) -> bool:
    """Return whether an equation does nothing (``touch``)."""
    return not equation.outvars and equation.primitive.name == "add_dependency"


def with_inner_jaxprs(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a parameter of an equation, or all, with the result for each jaxpr in its place."""
    if isinstance(value, tuple | list) and any(hasattr(each, "eqns") for each in value):
        return type(value)(with_inner_jaxprs(each, function) for each in value)
    if isinstance(value, dict):
        return {key: with_inner_jaxprs(each, function) for key, each in value.items()}
    if not hasattr(value, "eqns"):
        return value
    is_closed = type(getattr(value, "jaxpr", value)) is not type(value)  # one class in JAX 0.12
    return value.replace(jaxpr=function(value.jaxpr)) if is_closed else function(value)


def _known_equation(equation: Any, info: Any, meaning: _MeaningOf) -> Any:
    from jax._src.state import primitives as state_primitives

    if equation.primitive.name == _READ:  # a load, for which the plugin answers with the count
        _, transforms = equation.params["args_tree"].children()
        return equation.replace(primitive=state_primitives.get_p, params={"tree": transforms})
    if _has_rows(equation):
        return _called(equation, partial(kernel_primitives.copy_rows, equation.primitive), meaning)
    if _is_adding(equation):
        return kernel_primitives.adding(equation)
    own = _own(equation, meaning)
    if isinstance(own, InPython):
        return python_call(equation, own)
    if own is not None:
        return _called(equation, own, meaning)
    parameters = with_inner_jaxprs(equation.params, lambda jaxpr: known(jaxpr, meaning))
    return _selected(equation.replace(params=parameters), info)


def _called(equation: Any, own: Callable[..., Any], meaning: _MeaningOf) -> Any:
    """Return the equation that calls a function of an equation's operands in its place."""
    import numpy as np
    from jax._src import api_util, core
    from jax._src import linear_util as lu
    from jax._src.interpreters import partial_eval
    from jax._src.lax.control_flow.conditionals import cond_p

    def flat(*operands: Any) -> Sequence[Any]:
        results = own(*operands, **equation.params)
        return results if equation.primitive.multiple_results else [results]

    avals = [variable.aval for variable in equation.invars]
    info = api_util.debug_info("pallas kernel", flat, avals, {})
    traced = partial_eval.trace_to_jaxpr_dynamic(lu.wrap_init(flat, debug_info=info), avals)
    jaxpr, *_, constants = traced
    only = getattr(core, "ClosedJaxpr", core.Jaxpr)(known(jaxpr, meaning), constants)
    first = core.Literal(np.int32(0), core.ShapedArray((), np.dtype(np.int32)))
    return equation.replace(
        primitive=cond_p,
        invars=[first, *equation.invars],
        params={"branches": (only,)},
        effects=set(),
    )


def _scope(info: Any, references: Sequence[Any], body: Sequence[Any], results: Any) -> Any:
    """Return the equation that allocates references for a part of a jaxpr, and has its results."""
    from jax._src import core
    from jax._src.pallas import primitives

    own = {variable for equation in body for variable in equation.outvars}.union(references)
    read = [v for equation in body for v in equation.invars] + list(results)
    taken = dict.fromkeys(v for v in read if isinstance(v, core.Var) and v not in own)
    # Effects matter only to what is around a kernel, which its own jaxpr says.
    inner = core.Jaxpr(list(taken), references, results, body, debug_info=info)
    if hasattr(inner, "with_consts"):  # since JAX 0.12 whatever has no value is a parameter
        inner = inner.with_consts(list(taken))
    parameters = {"jaxpr": inner, "collective_axes": ()}
    given = [core.Var(result.aval) for result in results]
    return core.new_jaxpr_eqn(list(taken), given, primitives.run_scoped_p, parameters, set())


def _selections(equation: Any) -> Sequence[int]:
    """Return the positions of references that a copy selects at run time (``pl.select_ref``)."""
    if equation.primitive.name not in _COPIES:
        return []
    given = equation.params["tree"].unflatten(equation.invars)
    return [n for n, reference in enumerate(given) if _alternatives(reference)]


def _has_rows(equation: Any) -> bool:
    """Return whether a copy is of rows that an array in memory lists."""
    if equation.primitive.name not in _COPIES:
        return False
    source, target, *_ = equation.params["tree"].unflatten(equation.invars)
    return any(kernel_primitives.list_of_rows(each) for each in (source, target))


def _alternatives(reference: Any) -> Sequence[Any]:
    """Return the references of which one is selected, with all that is done to it afterwards."""
    inner = getattr(reference, "ref", None)
    if isinstance(inner, tuple | list):
        return inner
    inner_ones = [] if inner is None else _alternatives(inner)
    return [_seen_through(each, reference.transforms) for each in inner_ones]


def _seen_through(reference: Any, transforms: Sequence[Any]) -> Any:
    from jax._src.state.types import TransformedRef

    inner = getattr(reference, "ref", None)
    if inner is None or isinstance(inner, tuple | list):  # which selects again
        return TransformedRef(reference, tuple(transforms))
    return TransformedRef(inner, (*reference.transforms, *transforms))


def _selected(equation: Any, info: Any) -> Any:
    """Return the equation, or if it selects a reference a branch for each of these."""
    from jax._src import core
    from jax._src.lax.control_flow.conditionals import cond_p
    from jax._src.pallas.mosaic import primitives

    positions = _selections(equation)
    if not positions:
        return equation
    n, *_ = positions
    given = equation.params["tree"].unflatten(equation.invars)
    select = given[n]
    while not isinstance(select.ref, tuple | list):
        select = select.ref
    variables = list(dict.fromkeys(v for v in equation.invars if isinstance(v, core.Var)))
    branches = []
    for reference in _alternatives(given[n]):
        flat, tree = primitives._dma_flatten(*given[:n], reference, *given[n + 1 :])
        copy = equation.replace(invars=list(flat), params={**equation.params, "tree": tree})
        branch = core.Jaxpr([], variables, [], [_selected(copy, info)], debug_info=info)
        branches.append(getattr(core, "ClosedJaxpr", core.Jaxpr)(branch, ()))
    taken = [select.transforms[0].idx, *variables]
    return core.new_jaxpr_eqn(taken, [], cond_p, {"branches": tuple(branches)}, set())
