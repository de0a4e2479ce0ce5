"""Random programs as tests of torch_xla: what each expression of JAX is in torch.

An expression is evaluated with texts in the place of arrays, so that ``jnp.flip(v0, 1)`` becomes
``torch.flip(v0, [1])``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.fuzz.draft import FLOATS, DraftValue, FinishedDraft, MeshShape, rows
from harness.fuzz.per_device import groups_of

_TEXT = """\
import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
{imports}
GIVEN = [{given}]
EXPECTED = [{expected}]


def program({arguments}):
    mesh = xs.Mesh({devices}, {shape}, {names})
{body}


def test_program():
    xr.use_spmd()
    results = program(*(tensor.to("xla") for tensor in GIVEN))
    torch_xla.sync()
    for result, expected in zip(results, EXPECTED, strict=True):
        result = result.detach().cpu().double().numpy()
        np.testing.assert_allclose(result, expected, rtol={rounding}, atol={rounding})
"""
_SCAN = "torch_xla.experimental.scan"


@dataclass(frozen=True)
class TorchXlaText:
    """Writes lazy tensors with marks."""

    mesh: MeshShape
    framework = "torch_xla"

    def lines(
        self, name: str, text: str, operands: Sequence[DraftValue], shape: Sequence[int], /
    ) -> list[str]:
        """Return the statement, with a second line where torch changes a copy in place."""
        names = [operand.name for operand in operands]
        given = {v.name: _Text(v.name, v.array.ndim, v.dtype in FLOATS) for v in operands}
        jax = SimpleNamespace(shard_map=partial(_shard_map, tuple(shape)))
        lax = SimpleNamespace(**_LAX, **_collectives(self.mesh))
        words = {**_WORDS, "jax": jax, "lax": lax, **given}
        try:
            value: _Text = eval(text.format(*names), words)  # noqa: S307 - it is ours
        except AttributeError:  # lax.fori_loop, for example, has no counterpart
            return []
        return [f"{name} = {value}", *(line.format(name) for line in value.then)]

    def text(self, program: FinishedDraft) -> str:
        """Return a test that any pytest runs over as many devices as the mesh has."""
        draft = program.draft
        body = [f"{value.name}.requires_grad_()" for value in program.gradients_of]
        body += [_mark(v.name, spec) for v, _, spec in draft.arguments if any(spec)]
        body += draft.lines
        if program.gradients_of:
            sums = [f"({v.name} * {_weights(v.shape)}).sum()" for v in program.results]
            body.append(f"total = {' + '.join(sums)}")
            leaves = ", ".join(value.name for value in program.gradients_of)
            options = "allow_unused=True, materialize_grads=True"
            body.append(f"return torch.autograd.grad(total, [{leaves}], {options})")
        else:
            names = [value.name for value in program.results]
            for number, spec in enumerate(program.specs or ()):
                body += [f"r{number} = {names[number]} * 1", _mark(f"r{number}", spec)]
                names[number] = f"r{number}"
            body.append(f"return {', '.join(names)},")
        return _TEXT.format(
            imports=f"import {_SCAN}\n" if _SCAN in "".join(body) else "",
            given=rows(
                f"torch.from_numpy({text}).to(torch.{v.dtype})" for v, text, _ in draft.arguments
            ),
            expected=program.expected_text,
            arguments=", ".join(value.name for value, _, _ in draft.arguments),
            devices=list(self.mesh.devices),
            shape=tuple(self.mesh.axes.values()),
            names=tuple(self.mesh.axes),
            body="\n".join(f"    {line}" for line in body),
            rounding=program.rounding,
        )


def _mark(name: str, spec: Any) -> str:
    return f"xs.mark_sharding({name}, mesh, {_entries(spec, len(spec))})"


def _entries(spec: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return a partition spec for so many dimensions, as torch_xla takes it."""
    entries = [(e[0] if len(e) == 1 else e or None) if isinstance(e, tuple) else e for e in spec]
    return (*entries, *[None] * (count - len(entries)))


def _weights(shape: Sequence[int]) -> str:
    count = int(np.prod(shape, dtype=int))
    return f'(torch.arange({count}, device="xla") % 3 - 1.0).reshape({tuple(shape)})'


def _infix(operator: str) -> Callable[[Any, Any], _Text]:
    return lambda left, right: _Text(f"({left} {operator} {right})")


@dataclass(frozen=True)
class _Text:
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

    def __neg__(self) -> _Text:
        return _Text(f"-{self}")

    def __getitem__(self, index: int) -> _Text:
        return _Text(f"{self}[{index}]")

    @property
    def dtype(self) -> _Text:
        return _Text(f"{self}.dtype")

    @property
    def at(self) -> _ChangedPlaces:
        return _ChangedPlaces(self)

    def astype(self, dtype: _Text) -> _Text:
        return _Text(f"{self}.to({dtype})")

    def reshape(self, shape: tuple[int, ...]) -> _Text:
        return _Text(f"{self}.reshape({shape})")

    def transpose(self, order: tuple[int, ...]) -> _Text:
        return _Text(f"{self}.permute({order})")


@dataclass(frozen=True)
class _ChangedPlaces:
    """The ``x.at`` of JAX, whose rows or places something is done with."""

    changed: _Text
    place: Any = None

    def __getitem__(self, place: Any) -> _ChangedPlaces:
        return _ChangedPlaces(self.changed, place)

    def add(self, rows: _Text) -> _Text:
        return _Text(f"torch.index_add({self.changed}, 0, {self.place}, {rows})")

    def max(self, rows: _Text) -> _Text:
        return self._reduced(rows, "amax")

    def min(self, rows: _Text) -> _Text:
        return self._reduced(rows, "amin")

    def _reduced(self, rows: _Text, reducer: str) -> _Text:
        shape = (-1, *[1] * (rows.ndim - 1))
        index = f"{self.place}.long().reshape({shape}).expand({rows}.shape)"
        return _Text(f'{self.changed}.scatter_reduce(0, {index}, {rows}, "{reducer}")')

    def set(self, value: _Text) -> _Text:
        """Change a part of a copy, as a program of torch does."""
        places = ", ".join(_slice(*(p.start, p.stop, p.step)) for p in self.place)
        return _Text(f"{self.changed}.clone()", then=[f"{{0}}[{places}] = {value}"])


def _slice(start: int, stop: int, step: int) -> str:
    return f"{start}:{stop}" + (f":{step}" if step != 1 else "")


def _call(name: str) -> Callable[..., _Text]:
    def call(*arguments: Any, **options: Any) -> _Text:
        texts = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in options.items())]
        return _Text(f"{name}({', '.join(texts)})")

    return call


def _of(text: str) -> Callable[..., _Text]:
    """Return what writes its arguments into a text."""
    return lambda *arguments, **options: _Text(text.format(*arguments, **options))


def _pad(x: _Text, value: int, widths: Sequence[tuple[int, int, int]]) -> _Text:
    if any(inside for _, _, inside in widths):
        raise AttributeError("torch pads nothing between elements")
    edges = tuple(edge for low, high, _ in reversed(widths) for edge in (low, high))
    return _Text(f"torch.nn.functional.pad({x}, {edges}, value={value})")


def _window(x: _Text, zero: int, *options: Any) -> _Text:
    _, sizes, steps, padding = options
    axis = next((n for n, size in enumerate(sizes) if size > 1))
    padded = _pad(x, zero, [(*edges, 0) for edges in padding])
    windows = f"{padded}.unfold({axis}, {sizes[axis]}, {steps[axis]})"
    return _Text(f"{windows}.sum(-1, dtype={x.dtype})")


def _iota(dtype: _Text, shape: Sequence[int], axis: int) -> _Text:
    own = tuple(size if n == axis else 1 for n, size in enumerate(shape))
    return _Text(f'torch.arange({shape[axis]}, dtype={dtype}, device="xla").reshape({own})')


def _cumulative(x: _Text, name: str, axis: int, *, reverse: bool) -> _Text:
    text = f"torch.flip({x}, [{axis}])" if reverse else str(x)
    if name == "cumsum":
        text = f"torch.cumsum({text}, {axis}, dtype={x.dtype})"
    else:
        text = f"torch.{name}({text}, {axis})[0]"
    return _Text(f"torch.flip({text}, [{axis}])" if reverse else text)


def _scan(
    function: Callable[[_Text, _Text], tuple[_Text, _Text]], state: _Text, rows: _Text
) -> _Text:
    if not rows.is_float:
        raise AttributeError("torch_xla wants gradients of all that it scans")
    state_and_row = function(_Text("c"), _Text("row"))
    return _Text(f"{_SCAN}.scan(lambda c, row: {state_and_row}, {state}, {rows})")


def _shard_map(
    shape: tuple[int, ...], function: Any, *, in_specs: Any, out_specs: Any, **_: Any
) -> Callable[[_Text], _Text]:
    def mapped(x: _Text) -> _Text:
        own, out = _entries(in_specs, x.ndim), _entries(out_specs, len(shape))
        part = _Text(f"xs.enable_manual_sharding({x} * 1, {own}, mesh=mesh).global_tensor")
        whole = f"xs.disable_manual_sharding({function(part)}, {out}, {shape}, mesh=mesh)"
        return _Text(f"{whole}.global_tensor")

    return mapped


def _collectives(mesh: MeshShape) -> Mapping[str, Any]:
    """Return those that torch_xla has for the parts of a manual region, over device ids."""

    def groups(axes: Any) -> list[list[int]]:
        names = axes if isinstance(axes, tuple) else (axes,)
        return [[mesh.devices[n] for n in group] for group in groups_of(names, mesh)]

    def reduced(reducer: str) -> Callable[[_Text, Any], _Text]:
        call = _call("torch_xla._XLAC._xla_spmd_all_reduce")
        return lambda part, axes: call(reducer, part, 1.0, groups(axes))

    def scattered(part: _Text, axes: Any, *, scatter_dimension: int, **_: Any) -> _Text:
        call, every = _call("torch_xla._XLAC._xla_spmd_reduce_scatter"), groups(axes)
        return call("sum", part, 1.0, scatter_dimension, len(every[0]), every)

    return {
        **{f"p{name}": reduced(name) for name in ("max", "min")},
        "psum": reduced("sum"),
        "psum_scatter": scattered,
    }


_JNP: Mapping[str, Any] = {
    **{name: _call(f"torch.{name}") for name in ("abs", "sign", "where", "maximum", "einsum")},
    **{name: _call(f"torch.{name}") for name in ("sum", "argmax", "argmin", "roll", "zeros_like")},
    **{
        name: _Text(f"torch.{name}") for name in ("float32", "bfloat16", "float16", "int32", "int8")
    },
    "max": _call("torch.amax"),
    "min": _call("torch.amin"),
    "minimum": _of("torch.clamp({}, max={})"),
    "flip": _of("torch.flip({}, [{}])"),
    "broadcast_to": _of("{}.expand({})"),
    "concatenate": _of("torch.cat({}, {})"),
    "take": lambda x, indices, axis, **_: _Text(f"torch.index_select({x}, {axis}, {indices})"),
    "sort": _of("torch.sort({}, {})[0]"),
    "tensordot": _of("torch.tensordot({0}, {1}, ([{2[0]}], [{2[1]}]))"),
}
_LAX: Mapping[str, Any] = {
    **{
        name: lambda x, axis, reverse=False, name=name: _cumulative(x, name, axis, reverse=reverse)
        for name in ("cumsum", "cummax", "cummin")
    },
    "slice": lambda x, *bounds: _Text(
        f"{x}[{', '.join(_slice(*each) for each in zip(*bounds, strict=True))}]"
    ),
    "pad": _pad,
    "add": None,
    "reduce_window": _window,
    "broadcasted_iota": _iota,
    # A tensor is marked once, and its clone has its mark.
    "with_sharding_constraint": lambda x, spec: _Text(
        f"{x} * 1", then=[_mark("{0}", _entries(spec, x.ndim))]
    ),
    "scan": _scan,
}
_WORDS: Mapping[str, Any] = {
    "jnp": SimpleNamespace(**_JNP),
    "np": SimpleNamespace(array=lambda value, _: value),
    "mesh": None,
    "P": lambda *entries: entries,
    "NamedSharding": lambda _, spec: spec,
}
