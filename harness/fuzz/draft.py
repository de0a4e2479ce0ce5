"""A program while it is drawn: its mesh, its arguments, and its values as NumPy computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies
from hypothesis.strategies import DrawFn

Spec = tuple[tuple[str, ...], ...]  # the axes that divide each dimension
Compute = Callable[..., np.ndarray]
T = TypeVar("T")

FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int32", "int8", "uint8")
SIZES = (4, 2, 8, 1, 3, 6, 5, 12, 16)  # the simplest first: Hypothesis shrinks to it
_MOST = 256  # elements of a value
_EXACT = {"float32": 1 << 20, "bfloat16": 1 << 7, "float16": 1 << 10}  # sums are not rounded below


@dataclass(frozen=True)
class MeshShape:
    """A mesh: each axis with its size, and the places of its devices in ``jax.devices()``."""

    axes: Mapping[str, int]
    devices: Sequence[int]

    @property
    def count(self) -> int:
        """Return the number of devices."""
        return len(self.devices)

    def places(self) -> dict[str, np.ndarray]:
        """Return each device's place along each axis, in the mesh's own order."""
        shape = tuple(self.axes.values())
        return dict(zip(self.axes, np.unravel_index(np.arange(self.count), shape), strict=True))

    def number(self, axes: Sequence[str]) -> int:
        """Return into how many parts these axes divide a dimension."""
        return int(np.prod([self.axes[axis] for axis in axes], dtype=int))


@dataclass(frozen=True, eq=False)
class DraftValue:
    """A value of the program: its name, its array, and the operands that it is computed from.

    ``compute`` is what the operator does to the operands' arrays; None for an argument.
    """

    name: str
    array: np.ndarray
    compute: Compute | None = None
    operands: Sequence[DraftValue] = ()
    is_smooth: bool = True  # a difference quotient is its derivative

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the array's shape."""
        return self.array.shape

    @property
    def dtype(self) -> str:
        """Return the name of the array's type."""
        return str(self.array.dtype)


class Writer(Protocol):
    """What writes a program over a mesh in the words of a framework."""

    @property
    def framework(self) -> str:
        """Return the framework's name."""
        ...

    def lines(
        self, name: str, text: str, operands: Sequence[DraftValue], shape: Sequence[int], /
    ) -> list[str]:
        """Return the lines that give a name to what an expression of JAX computes; [] if none can.

        ``text`` has ``{0}``, ``{1}`` for the operands; ``shape`` is the value's.
        """
        ...

    def text(self, program: FinishedDraft) -> str:
        """Return the test."""
        ...


@dataclass
class Draft:
    """What is drawn of a program so far.

    Attributes:
        draw: Hypothesis' function.
        mesh: which the program's shardings are about.
        writer: the framework's.
        is_explicit: whether the mesh's axes are part of the arrays' types.
        is_checked: whether JAX is to know which parts of a mapped function are the same, if it can.
        arguments: the values that the program takes, each with its text and how it is divided.
        values: all values, the newest last.
        lines: the program's statements.
        features: the operators in it, and what is unusual about them.
    """

    draw: DrawFn
    mesh: MeshShape
    writer: Writer
    is_explicit: bool = False
    is_checked: bool = False
    arguments: list[tuple[DraftValue, str, Spec]] = field(default_factory=list)
    values: list[DraftValue] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    features: set[str] = field(default_factory=set)

    def of(self, choices: Sequence[T]) -> T:
        """Return a drawn choice; the first is the simplest."""
        return self.draw(strategies.sampled_from(choices))

    def within(self, low: int, high: int) -> int:
        """Return a drawn number, from ``low`` to ``high``; the one nearest to 0 is the simplest."""
        return self.draw(strategies.integers(low, high))

    def coin(self) -> bool:
        """Return a drawn truth value; False is simpler."""
        return self.draw(strategies.booleans())

    def value(self, accepts: Callable[[DraftValue], bool] = lambda _: True) -> DraftValue | None:
        """Return a drawn value that is accepted, None if none is."""
        able = [value for value in self.values if accepts(value)][::-1]
        if not able or not self.coin():
            return able[0] if able else None
        return self.of(able)

    def axis(self, value: DraftValue) -> int:
        """Return a drawn dimension of a value that has some."""
        return self.within(0, value.array.ndim - 1)

    def argument(self, shape: Sequence[int], dtype: str, spec: Spec) -> DraftValue:
        """Add an argument of small integers."""
        step = self.of((1, 7, 5, 4, 2))
        low, most = (0, 5) if dtype == "uint8" else (-4, 9)
        count = int(np.prod(shape, dtype=int))
        array = (np.arange(count) * step % most + low).reshape(shape).astype(numpy_type(dtype))
        text = f"(np.arange({count}) * {step} % {most} + {low}).reshape({tuple(shape)})"
        return self._argument(array, text, spec)

    def index(self, indices: np.ndarray, spec: Spec = ()) -> DraftValue:
        """Add an argument of indices, which every device has if no axes divide them."""
        text = f"np.array({indices.tolist()})"
        return self._argument(indices.astype(np.int32), text, spec or ((),) * indices.ndim)

    def _argument(self, array: np.ndarray, text: str, spec: Spec) -> DraftValue:
        value = DraftValue(f"a{len(self.arguments)}", array)
        self.arguments.append((value, text, spec))
        return value

    def add(
        self,
        text: str,
        compute: Compute,
        *operands: DraftValue,
        feature: str,
        smooth: bool = False,
    ) -> bool:
        """Add a statement if its value is neither too large nor inexact; return whether it is.

        ``text`` is an expression with ``{0}``, ``{1}`` for the operands.
        """
        with np.errstate(over="ignore"):  # integers wrap, as XLA's do
            array = np.asarray(compute(*(operand.array for operand in operands)))
        if array.size > _MOST or not array.size or not is_exact(array):
            return False
        is_smooth = smooth and all(operand.is_smooth for operand in operands)
        value = DraftValue(f"v{len(self.values)}", array, compute, operands, is_smooth)
        if not (lines := self.writer.lines(value.name, text, operands, array.shape)):
            return False
        self.lines += lines
        self.values.append(value)
        self.features.add(feature)
        return True

    def spec(self, shape: Sequence[int], *, even: bool) -> Spec:
        """Return drawn axes for the dimensions of a shape; ``even`` wants equal parts."""
        left, dimensions = list(self.mesh.axes), []
        for size in shape:
            axes: tuple[str, ...] = ()
            for _ in range(2):
                able = [a for a in left if not even or size % self.mesh.number((*axes, a)) == 0]
                if not able or not self.coin():
                    break
                axes = (*axes, self.of(able))
                left.remove(axes[-1])
            dimensions.append(axes)
        return tuple(dimensions)


@dataclass(frozen=True)
class FinishedDraft:
    """A program that is drawn: what it returns, and what that should be.

    Attributes:
        draft: its mesh, arguments and statements.
        results: the values that it returns.
        gradients_of: the arguments for which it returns the gradients of the results instead.
        expected: the arrays that it should return.
        specs: how these are divided; None if that is for the compiler to choose.
        is_donated: whether it may have its first argument's memory.
        is_gspmd: whether GSPMD divides it, and not Shardy.
    """

    draft: Draft
    results: Sequence[DraftValue]
    gradients_of: Sequence[DraftValue]
    expected: Sequence[np.ndarray]
    specs: Sequence[Spec] | None
    is_donated: bool
    is_gspmd: bool

    @property
    def rounding(self) -> float:
        """Return the difference that is none."""
        types = {value.dtype for value in self.draft.values}
        return 0.03 if types & {"bfloat16", "float16"} else 1e-3

    @property
    def expected_text(self) -> str:
        """Return the text of the expected arrays."""
        return rows(f"np.array({array.tolist()}, float)" for array in self.expected)


def rows(texts: Iterable[str]) -> str:
    """Return the text of a list's items, each on a line."""
    return "\n    " + ",\n    ".join(texts) + ",\n"


def is_exact(array: np.ndarray) -> bool:
    """Return whether sums of such values are not rounded."""
    most = _EXACT.get(str(array.dtype))
    return most is None or bool(np.abs(array.astype(np.float64)).max(initial=0) <= most)


def spec_text(spec: Spec) -> str:
    """Return the text of a partition spec."""
    entries = []
    for axes in spec:
        axis_or_axes = axes[0] if len(axes) == 1 else axes
        entries.append(repr(axis_or_axes) if axes else "None")
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def numpy_type(dtype: str) -> Any:
    """Return a type as NumPy takes it."""
    import ml_dtypes

    return ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype


def type_text(dtype: str) -> str:
    """Return a type as JAX takes it."""
    return "jnp.bfloat16" if dtype == "bfloat16" else repr(dtype)
