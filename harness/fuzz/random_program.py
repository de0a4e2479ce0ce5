"""Random programs: sharded functions of JAX, and the results that NumPy computes for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies
from hypothesis.strategies import DrawFn

from harness.fuzz.draft import (
    FLOATS,
    INTEGERS,
    SIZES,
    Draft,
    DraftValue,
    MeshShape,
    Spec,
    is_exact,
    spec_text,
)
from harness.fuzz.random_operators import OPERATORS

_MESHES: Sequence[Mapping[str, int]] = (
    {"x": 2},
    {"x": 4},
    {"x": 2, "y": 2},
    {"x": 3},
    {"x": 8},
    {"x": 2, "y": 4},
    {"x": 2, "y": 2, "z": 2},
    {"x": 3, "y": 2},
    {"x": 1, "y": 4},
)
ALWAYS = ("constraint",)  # operators that each program may have
_STATEMENTS = 10  # at most
_STEP = 2.0**-6  # of a difference quotient; exact for what has no third derivative
_TEXT = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

GIVEN = [{given}]
EXPECTED = [{expected}]


def program():
    devices = np.array([jax.devices()[n] for n in {devices}]).reshape({shape})
    mesh = Mesh(devices, {names}{types})

    def computed({arguments}):
{body}

    divided = [{divided}]
    return jax.jit(computed, in_shardings=[NamedSharding(mesh, spec) for spec in divided]{options})


def test_program():
{before}    for result, expected in zip(program()(*GIVEN), EXPECTED, strict=True):
        result = np.asarray(result, float)
        np.testing.assert_allclose(result, expected, rtol={rounding}, atol={rounding})
"""
_EXPLICIT = ", axis_types=(jax.sharding.AxisType.Explicit,) * {}"
GSPMD = 'jax.config.update("jax_use_shardy_partitioner", False)'


@dataclass(frozen=True)
class RandomProgram:
    """A random program.

    Attributes:
        text: a test that any pytest runs, whose ``program()`` returns the jitted function.
        features: the operators in it, and what is unusual about them.
        is_gspmd: whether GSPMD divides it, and not Shardy.
        is_explicit: whether types have shardings, so that JAX may refuse a valid program.
    """

    text: str
    features: frozenset[str]
    is_gspmd: bool
    is_explicit: bool = False


@strategies.composite
def random_programs(
    draw: DrawFn, devices: int, *, has_gspmd: bool, without: Collection[str] = ()
) -> RandomProgram:
    """Return a strategy for programs over at most so many devices, ``without`` some operators."""
    draft = Draft(draw, _mesh(draw, devices))
    draft.is_explicit = draft.of((False, False, False, True))
    sizes = [axis * n for axis in {*draft.mesh.axes.values()} for n in (1, 2, 3)]
    dtype = draft.of((*FLOATS[:1], *INTEGERS[:1], *FLOATS[1:], *INTEGERS[1:]))
    for _ in range(draft.within(1, 3)):
        shape = tuple(draft.of((*sizes, *SIZES)) for _ in range(draft.of((1, 2, 2, 3))))
        shape = shape if np.prod(shape) <= 128 else shape[:1]
        value = draft.argument(shape, dtype, draft.spec(shape, even=True))
        draft.values.append(value)
    # Programs of few kinds of operators show what a mixture of all would hide.
    able = [name for name in (*OPERATORS, *ALWAYS) if name not in without]
    enabled = draw(strategies.lists(strategies.sampled_from(able), min_size=2, max_size=8))
    enabled += [name for name in ALWAYS if name in able]
    for _ in range(_STATEMENTS):
        if not draw(_statement(draft, enabled)):
            break
    return _finished(draft, is_gspmd=has_gspmd and not draft.is_explicit and draft.coin())


@strategies.composite
def _statement(draw: DrawFn, draft: Draft, enabled: Sequence[str]) -> bool:
    """Add a statement and return whether there may be more.

    It is a strategy of its own so that Hypothesis can leave one out when it shrinks.
    """
    if draft.lines and not draw(strategies.integers(0, 15)):
        return False
    return any(OPERATORS[draft.of(enabled)](draft) for _ in range(3)) or True


def _mesh(draw: DrawFn, devices: int) -> MeshShape:
    able = [axes for axes in _MESHES if np.prod([*axes.values()]) <= devices] or [{"x": 1}]
    axes = draw(strategies.sampled_from(able))
    count = int(np.prod([*axes.values()]))
    orders = [
        [*range(count)],
        [*range(count)][::-1],
        [*range(1, count), 0],
        np.arange(count).reshape(-1, 2).T.ravel().tolist() if count % 2 == 0 else [*range(count)],
    ]
    return MeshShape(axes, draw(strategies.sampled_from(orders)))


def _finished(draft: Draft, *, is_gspmd: bool) -> RandomProgram:
    """Return the program: its last values, or how their sum changes with the arguments."""
    given = [value for value, _, _ in draft.arguments]
    results = draft.values[-1 - draft.within(0, 2) :]
    lines = list(draft.lines)
    floats = [value for value in given if value.dtype == "float32"]
    gradients = _gradients(results, floats) if draft.coin() else []
    names = ", ".join(value.name for value in given)
    if gradients:
        draft.features.add("gradient")
        arrays = gradients
        sums = " + ".join(f"({v.name} * {_weights(v.shape)}).sum()" for v in results)
        body = [f"def total({names}):", *(f"    {line}" for line in [*lines, f"return {sums}"])]
        numbers = tuple(given.index(value) for value in floats)
        body.append(f"return jax.grad(total, {numbers})({names})")
        specs: Sequence[Spec] = [spec for v, _, spec in draft.arguments if v in floats]
    else:
        arrays = [value.array for value in results]
        body = [*lines, f"return ({', '.join(value.name for value in results)},)"]
        specs = [draft.spec(array.shape, even=True) for array in arrays]
    options = ""
    # JAX refuses a result in parts of different sizes, which it might infer from such a constraint.
    if draft.coin() or "constraint.uneven" in draft.features:
        outs = ", ".join(f"NamedSharding(mesh, {spec_text(spec)})" for spec in specs)
        options += f", out_shardings=({outs},)"
    if draft.coin():
        draft.features.add("donation")
        options += ", donate_argnums=(0,)"
    if is_gspmd:
        draft.features.add("gspmd")
    if draft.is_explicit and draft.features:
        draft.features.add("explicit")
    wide = 0.03 if any(v.dtype in ("bfloat16", "float16") for v in draft.values) else 1e-3
    text = _TEXT.format(
        given=_rows([text for _, text, _ in draft.arguments]),
        expected=_rows([f"np.array({array.tolist()}, float)" for array in arrays]),
        devices=list(draft.mesh.devices),
        shape=tuple(draft.mesh.axes.values()),
        names=tuple(draft.mesh.axes),
        types=_EXPLICIT.format(len(draft.mesh.axes)) if draft.is_explicit else "",
        arguments=names,
        body="\n".join(f"        {line}" for line in body),
        divided=", ".join(spec_text(spec) for _, _, spec in draft.arguments),
        options=options,
        before=f"    {GSPMD}\n" if is_gspmd else "",
        rounding=wide,
    )
    return RandomProgram(text, frozenset(draft.features), is_gspmd, draft.is_explicit)


def _rows(texts: Sequence[str]) -> str:
    return "\n    " + ",\n    ".join(texts) + ",\n"


def _weights(shape: Sequence[int]) -> str:
    count = int(np.prod(shape, dtype=int))
    return f"(jnp.arange({count}) % 3 - 1.0).reshape({tuple(shape)})"


def _gradients(results: Sequence[DraftValue], floats: Sequence[DraftValue]) -> list[np.ndarray]:
    """Return how the weighted sum of results changes with each argument; [] if it can't be said."""
    if not floats or not all(value.is_smooth and value.dtype == "float32" for value in results):
        return []
    total = _function(results)
    given = {value.name: value.array.astype(np.float64) for value in floats}
    gradients = []
    for value in floats:
        array, gradient = given[value.name], np.zeros(value.shape)
        for place in np.ndindex(*value.shape):
            sums = []
            for step in (_STEP, -_STEP):
                changed = array.copy()
                changed[place] += step
                sums.append(total({**given, value.name: changed}))
            gradient[place] = (sums[0] - sums[1]) / (2 * _STEP)
        gradients.append(gradient.astype(np.float32))
    exact = all(is_exact(gradient) for gradient in gradients)
    return gradients if exact else []


def _function(results: Sequence[DraftValue]) -> Callable[[Mapping[str, np.ndarray]], float]:
    def total(given: Mapping[str, np.ndarray]) -> float:
        known: dict[str, Any] = dict(given)

        def of(value: DraftValue) -> np.ndarray:
            if value.name not in known:
                if value.compute is None:
                    known[value.name] = value.array
                else:
                    known[value.name] = value.compute(*map(of, value.operands))
            array: np.ndarray = known[value.name]
            return array

        weights = [np.arange(v.array.size).reshape(v.shape) % 3 - 1.0 for v in results]
        return float(sum((of(v) * w).sum() for v, w in zip(results, weights, strict=True)))

    return total
