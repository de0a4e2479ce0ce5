"""Jaxprs of Pallas kernels, read and changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


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


def scoped(jaxpr: Any) -> Any:
    """Return a jaxpr that allocates memory only in scopes, the way that JAX's interpreter knows.

    What follows a ``jax.empty_ref`` becomes the scope of its memory.
    """
    if all(equation.primitive.name != _ALLOCATION for equation in equations(jaxpr)):
        return jaxpr
    inner = [equation.replace(params=_scoped(equation.params)) for equation in jaxpr.eqns]
    results = jaxpr.outvars
    for n, allocation in reversed(list(enumerate(inner))):
        if allocation.primitive.name == _ALLOCATION:
            scope = _scope(allocation.outvars, inner[n + 1 :], results, jaxpr.debug_info)
            inner[n:], results = [scope], scope.outvars
    return jaxpr.replace(eqns=inner, outvars=results)


_ALLOCATION = "empty_ref"  # since JAX 0.10


def _scoped(value: Any) -> Any:
    """Return a parameter of an equation whose jaxprs, if it has any, are ``scoped``."""
    if isinstance(value, tuple | list):
        return type(value)(map(_scoped, value))
    if isinstance(value, dict):
        return {key: _scoped(each) for key, each in value.items()}
    if hasattr(value, "eqns"):
        is_closed = hasattr(value, "consts")
        return value.replace(jaxpr=scoped(value.jaxpr)) if is_closed else scoped(value)
    return value


def _scope(references: Sequence[Any], body: Sequence[Any], results: Sequence[Any], info: Any) -> Any:
    """Return the equation that allocates references for a body, and has its results."""
    from jax._src import core
    from jax._src.pallas import primitives

    own = {variable for equation in body for variable in equation.outvars}.union(references)
    read = [v for equation in body for v in equation.invars] + list(results)
    taken = dict.fromkeys(v for v in read if isinstance(v, core.Var) and v not in own)
    effects = core.no_effects.union(*(equation.effects for equation in body))
    inner = core.Jaxpr(list(taken), list(references), list(results), list(body), effects, info)
    outside = {effect for effect in effects if not hasattr(effect, "input_index")}
    parameters = {"jaxpr": inner, "collective_axes": ()}
    given = [core.Var(result.aval) for result in results]
    return core.new_jaxpr_eqn(list(taken), given, primitives.run_scoped_p, parameters, outside)
