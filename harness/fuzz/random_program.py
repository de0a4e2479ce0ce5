"""Random programs: sharded functions, and the results that NumPy computes for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.strategies import DrawFn, SearchStrategy

from harness.fuzz.draft import (
    FLOATS,
    INTEGERS,
    SIZES,
    Draft,
    DraftValue,
    FinishedDraft,
    MeshShape,
    Spec,
    Writer,
    is_exact,
)
from harness.fuzz.dtensor_text import DTensorText
from harness.fuzz.jax_text import JaxText
from harness.fuzz.random_operators import OPERATORS
from harness.fuzz.torch_xla_text import TorchXlaText

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
DTENSOR = ("torch_tpu", "torch")  # frameworks whose programs have DTensors
WRITERS: Mapping[str, Callable[[MeshShape], Writer]] = {
    "jax": JaxText,
    "torch_xla": TorchXlaText,
    "torch_tpu": partial(DTensorText, framework="torch_tpu", device="tpu"),
    "torch": partial(DTensorText, framework="torch", device="cpu"),
}
_STEP = 2.0**-6  # of a difference quotient; exact for what has no third derivative


@dataclass(frozen=True)
class RandomProgram:
    """A random program.

    Attributes:
        text: a test that any pytest runs.
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
    draw: DrawFn,
    devices: int,
    *,
    has_gspmd: bool,
    framework: str = "jax",
    without: Collection[str] = (),
) -> RandomProgram:
    """Return a strategy for programs over at most so many devices, ``without`` some operators.

    Those of torch are over all devices, as torch_xla's meshes are, and a job's ranks.
    """
    is_jax = framework == "jax"
    mesh = _mesh(draw, 1 if is_jax else devices, devices)
    if framework in DTENSOR and not _ascends(mesh):
        mesh = MeshShape(mesh.axes, range(mesh.count))  # pytorch/pytorch#193224
    draft = Draft(draw, mesh, WRITERS[framework](mesh))
    draft.is_explicit = is_jax and draft.of((False, False, False, True))
    draft.is_checked = is_jax and draft.of((True, False))
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


def draw_programs(
    strategy: SearchStrategy[RandomProgram], seed: int, examples: int
) -> list[RandomProgram]:
    """Draw so many examples; return the different programs that compute something."""
    programs: dict[str, RandomProgram] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def draw(program: RandomProgram) -> None:
        if program.features:
            programs[program.text] = program

    draw()
    return list(programs.values())


@strategies.composite
def _statement(draw: DrawFn, draft: Draft, enabled: Sequence[str]) -> bool:
    """Add a statement and return whether there may be more.

    It is a strategy of its own so that Hypothesis can leave one out when it shrinks.
    """
    if draft.lines and not draw(strategies.integers(0, 15)):
        return False
    return any(OPERATORS[draft.of(enabled)](draft) for _ in range(3)) or True


def _mesh(draw: DrawFn, fewest: int, most: int) -> MeshShape:
    able = [axes for axes in _MESHES if fewest <= np.prod([*axes.values()]) <= most]
    able = able or [{"x": fewest}]
    axes = draw(strategies.sampled_from(able))
    count = int(np.prod([*axes.values()]))
    orders = [
        [*range(count)],
        [*range(count)][::-1],
        [*range(1, count), 0],
        np.arange(count).reshape(-1, 2).T.ravel().tolist() if count % 2 == 0 else [*range(count)],
    ]
    return MeshShape(axes, draw(strategies.sampled_from(orders)))


def _ascends(mesh: MeshShape) -> bool:
    """Return whether the devices' numbers become greater along each axis."""
    devices = np.reshape(mesh.devices, [*mesh.axes.values()])
    return all((np.diff(devices, axis=axis) > 0).all() for axis in range(devices.ndim))


def _finished(draft: Draft, *, is_gspmd: bool) -> RandomProgram:
    """Return the program: its last values, or how their sum changes with the arguments."""
    results = draft.values[-1 - draft.within(0, 2) :]
    floats = [value for value, _, _ in draft.arguments if value.dtype == "float32"]
    gradients = _gradients(results, floats) if draft.coin() else []
    if gradients:
        draft.features.add("gradient")
        specs: Sequence[Spec] = [spec for v, _, spec in draft.arguments if v in floats]
    else:
        specs = [draft.spec(value.shape, even=True) for value in results]
    # JAX refuses a result in parts of different sizes, which it might infer from such a constraint.
    has_specs = draft.coin() or "constraint.uneven" in draft.features
    is_donated = draft.writer.framework == "jax" and draft.coin()
    draft.features |= {"donation"} if is_donated else set()
    draft.features |= {"gspmd"} if is_gspmd else set()
    if draft.is_explicit and draft.features:
        draft.features.add("explicit")
    if draft.features and draft.writer.framework != "jax":
        draft.features.add(draft.writer.framework)
    finished = FinishedDraft(
        draft,
        results,
        floats if gradients else [],
        gradients or [value.array for value in results],
        specs if has_specs else None,
        is_donated,
        is_gspmd,
    )
    text = draft.writer.text(finished)
    return RandomProgram(text, frozenset(draft.features), is_gspmd, draft.is_explicit)


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
