"""What each expression of JAX is in torch.

An expression is evaluated with texts in the place of arrays, so that ``jnp.flip(v0, 1)`` becomes
``torch.flip(v0, [1])``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.fuzz.draft import FLOATS, DraftValue, FinishedDraft, rows

DEVICE = "DEVICE"  # the name of the constant in a test that says which device it is about


def statement(
    name: str,
    text: str,
    operands: Sequence[DraftValue],
    mapped: Callable[..., Any],
    lax: Mapping[str, Any],
) -> list[str]:
    """Return the lines that name what an expression of JAX computes; [] if torch has no words.

    There is a second line if torch changes a copy in place. ``mapped`` stands for ``shard_map``;
    ``lax`` has the words that are not those of plain tensors.
    """
    names = [operand.name for operand in operands]
    given = {v.name: TensorText(v.name, v.array.ndim, v.dtype in FLOATS) for v in operands}
    words = {
        **_WORDS,
        "jax": SimpleNamespace(shard_map=mapped),
        "lax": SimpleNamespace(**_LAX, **lax),
        **given,
    }
    try:
        value: TensorText = eval(text.format(*names), words)  # noqa: S307 - it is ours
    except AttributeError:  # lax.fori_loop, for example, has no counterpart
        return []
    return [f"{name} = {value}", *(line.format(name) for line in value.then)]


def common_fields(program: FinishedDraft, body: Sequence[str]) -> Mapping[str, object]:
    """Return what a test has in the words of either framework, by its name in a template."""
    arguments, mesh = program.draft.arguments, program.draft.mesh
    return {
        "given": rows(f"torch.from_numpy({text}).to(torch.{v.dtype})" for v, text, _ in arguments),
        "expected": program.expected_text,
        "arguments": ", ".join(value.name for value, _, _ in arguments),
        "devices": list(mesh.devices),
        "shape": tuple(mesh.axes.values()),
        "names": tuple(mesh.axes),
        "body": "\n".join(f"    {line}" for line in body),
        "rounding": program.rounding,
    }


def gradient_lines(program: FinishedDraft) -> list[str]:
    """Return the statements that return the gradients of the weighted results."""
    sums = [f"({v.name} * {_weights(v.shape)}).sum()" for v in program.results]
    leaves = ", ".join(value.name for value in program.gradients_of)
    options = "allow_unused=True, materialize_grads=True"
    return [
        f"total = {' + '.join(sums)}",
        f"return torch.autograd.grad(total, [{leaves}], {options})",
    ]


def _weights(shape: Sequence[int]) -> str:
    count = int(np.prod(shape, dtype=int))
    return f"(torch.arange({count}, device={DEVICE}) % 3 - 1.0).reshape({tuple(shape)})"


def _infix(operator: str) -> Callable[[Any, Any], TensorText]:
    return lambda left, right: TensorText(f"({left} {operator} {right})")


@dataclass(frozen=True)
class TensorText:
    """The text of a tensor.

    Attributes:
        text: an expression of torch.
        ndim: the number of its dimensions, of a variable.
        is_float: whether it has such numbers, of a variable.
        then: statements that change the variable ``{0}``, to which it is assigned.
    """

    text: str
    ndim: int = 0
    is_float: bool = False
    then: Sequence[str] = ()

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__
    __add__, __sub__, __mul__ = _infix("+"), _infix("-"), _infix("*")
    __lt__, __gt__ = _infix("<"), _infix(">")

    def __neg__(self) -> TensorText:
        return TensorText(f"-{self}")

    def __getitem__(self, index: int) -> TensorText:
        return TensorText(f"{self}[{index}]")

    @property
    def dtype(self) -> TensorText:
        return TensorText(f"{self}.dtype")

    @property
    def at(self) -> _ChangedPlaces:
        return _ChangedPlaces(self)

    def astype(self, dtype: TensorText | str) -> TensorText:
        return TensorText(f"{self}.to({f'torch.{dtype}' if isinstance(dtype, str) else dtype})")

    def reshape(self, shape: tuple[int, ...]) -> TensorText:
        return TensorText(f"{self}.reshape({shape})")

    def transpose(self, order: tuple[int, ...]) -> TensorText:
        return TensorText(f"{self}.permute({order})")


@dataclass(frozen=True)
class _ChangedPlaces:
    """The ``x.at`` of JAX, whose rows or places something is done with."""

    changed: TensorText
    place: Any = None

    def __getitem__(self, place: Any) -> _ChangedPlaces:
        return _ChangedPlaces(self.changed, place)

    def add(self, rows: TensorText) -> TensorText:
        return TensorText(f"torch.index_add({self.changed}, 0, {self.place}, {rows})")

    def max(self, rows: TensorText) -> TensorText:
        return self._reduced(rows, "amax")

    def min(self, rows: TensorText) -> TensorText:
        return self._reduced(rows, "amin")

    def _reduced(self, rows: TensorText, reducer: str) -> TensorText:
        shape = (-1, *[1] * (rows.ndim - 1))
        index = f"{self.place}.long().reshape({shape}).expand({rows}.shape)"
        return TensorText(f'{self.changed}.scatter_reduce(0, {index}, {rows}, "{reducer}")')

    def set(self, value: TensorText) -> TensorText:
        """Change a part of a copy, as a program of torch does."""
        places = ", ".join(_slice(*(p.start, p.stop, p.step)) for p in self.place)
        return TensorText(f"{self.changed}.clone()", then=[f"{{0}}[{places}] = {value}"])


def _slice(start: int, stop: int, step: int) -> str:
    return f"{start}:{stop}" + (f":{step}" if step != 1 else "")


def call(name: str) -> Callable[..., TensorText]:
    def call(*arguments: Any, **options: Any) -> TensorText:
        texts = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in options.items())]
        return TensorText(f"{name}({', '.join(texts)})")

    return call


def _of(text: str) -> Callable[..., TensorText]:
    """Return what writes its arguments into a text."""
    return lambda *arguments, **options: TensorText(text.format(*arguments, **options))


def _pad(x: TensorText, value: int, widths: Sequence[tuple[int, int, int]]) -> TensorText:
    if any(inside for _, _, inside in widths):
        raise AttributeError("torch pads nothing between elements")
    edges = tuple(edge for low, high, _ in reversed(widths) for edge in (low, high))
    return TensorText(f"torch.nn.functional.pad({x}, {edges}, value={value})")


def _window(x: TensorText, zero: int, *options: Any) -> TensorText:
    _, sizes, steps, padding = options
    axis = next((n for n, size in enumerate(sizes) if size > 1))
    padded = _pad(x, zero, [(*edges, 0) for edges in padding])
    windows = f"{padded}.unfold({axis}, {sizes[axis]}, {steps[axis]})"
    return TensorText(f"{windows}.sum(-1, dtype={x.dtype})")


def _iota(dtype: TensorText, shape: Sequence[int], axis: int) -> TensorText:
    own = tuple(size if n == axis else 1 for n, size in enumerate(shape))
    return TensorText(f"torch.arange({shape[axis]}, dtype={dtype}, device={DEVICE}).reshape({own})")


def _cumulative(x: TensorText, name: str, axis: int, *, reverse: bool) -> TensorText:
    text = f"torch.flip({x}, [{axis}])" if reverse else str(x)
    if name == "cumsum":
        text = f"torch.cumsum({text}, {axis}, dtype={x.dtype})"
    else:
        text = f"torch.{name}({text}, {axis})[0]"
    return TensorText(f"torch.flip({text}, [{axis}])" if reverse else text)


_JNP: Mapping[str, Any] = {
    **{name: call(f"torch.{name}") for name in ("abs", "sign", "where", "maximum", "einsum")},
    **{name: call(f"torch.{name}") for name in ("sum", "argmax", "argmin", "roll", "zeros_like")},
    **{
        name: TensorText(f"torch.{name}")
        for name in ("float32", "bfloat16", "float16", "int32", "int8")
    },
    "max": call("torch.amax"),
    "min": call("torch.amin"),
    "minimum": _of("torch.clamp({}, max={})"),
    "flip": _of("torch.flip({}, [{}])"),
    "broadcast_to": _of("{}.expand({})"),
    "concatenate": _of("torch.cat({}, {})"),
    "take": lambda x, indices, axis, **_: TensorText(f"torch.index_select({x}, {axis}, {indices})"),
    "sort": _of("torch.sort({}, {})[0]"),
    "tensordot": _of("torch.tensordot({0}, {1}, ([{2[0]}], [{2[1]}]))"),
}
_LAX: Mapping[str, Any] = {
    **{
        name: lambda x, axis, reverse=False, name=name: _cumulative(x, name, axis, reverse=reverse)
        for name in ("cumsum", "cummax", "cummin")
    },
    "slice": lambda x, *bounds: TensorText(
        f"{x}[{', '.join(_slice(*each) for each in zip(*bounds, strict=True))}]"
    ),
    "pad": _pad,
    "add": None,
    "reduce_window": _window,
    "broadcasted_iota": _iota,
}
_WORDS: Mapping[str, Any] = {
    "jnp": SimpleNamespace(**_JNP),
    "np": SimpleNamespace(array=lambda value, _: value),
    "mesh": None,
    "P": lambda *entries: entries,
    "NamedSharding": lambda _, spec: spec,
}
