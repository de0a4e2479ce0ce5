"""Random programs as tests of torch_xla: lazy tensors with marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.fuzz.draft import DraftValue, FinishedDraft, MeshShape
from harness.fuzz.per_device import groups_of
from harness.fuzz.torch_words import TensorText, call, common_fields, gradient_lines, statement

_TEXT = """\
import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
{imports}
DEVICE = "xla"
GIVEN = [{given}]
EXPECTED = [{expected}]


def program({arguments}):
    mesh = xs.Mesh({devices}, {shape}, {names})
{body}


def test_program():
    xr.use_spmd()
    results = program(*(tensor.to(DEVICE) for tensor in GIVEN))
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
        """Return the statement."""
        lax = {
            # A tensor is marked once, and its clone has its mark.
            "with_sharding_constraint": lambda x, spec: TensorText(
                f"{x} * 1", then=[_mark("{0}", _entries(spec, x.ndim))]
            ),
            "scan": _scan,
            **_collectives(self.mesh),
        }
        return statement(name, text, operands, partial(_shard_map, tuple(shape)), lax)

    def text(self, program: FinishedDraft) -> str:
        """Return a test that any pytest runs over as many devices as the mesh has."""
        draft = program.draft
        body = [f"{value.name}.requires_grad_()" for value in program.gradients_of]
        body += [_mark(v.name, spec) for v, _, spec in draft.arguments if any(spec)]
        body += draft.lines
        if program.gradients_of:
            body += gradient_lines(program)
        else:
            names = [value.name for value in program.results]
            for number, spec in enumerate(program.specs or ()):
                body += [f"r{number} = {names[number]} * 1", _mark(f"r{number}", spec)]
                names[number] = f"r{number}"
            body.append(f"return {', '.join(names)},")
        return _TEXT.format(
            imports=f"import {_SCAN}\n" if _SCAN in "".join(body) else "",
            **common_fields(program, body),
        )


def _mark(name: str, spec: Any) -> str:
    return f"xs.mark_sharding({name}, mesh, {_entries(spec, len(spec))})"


def _entries(spec: Sequence[Any], count: int) -> tuple[Any, ...]:
    """Return a partition spec for so many dimensions, as torch_xla takes it."""
    entries = [(e[0] if len(e) == 1 else e or None) if isinstance(e, tuple) else e for e in spec]
    return (*entries, *[None] * (count - len(entries)))


def _scan(
    function: Callable[[TensorText, TensorText], tuple[TensorText, TensorText]],
    state: TensorText,
    rows: TensorText,
) -> TensorText:
    if not rows.is_float:
        raise AttributeError("torch_xla wants gradients of all that it scans")
    state_and_row = function(TensorText("c"), TensorText("row"))
    return TensorText(f"{_SCAN}.scan(lambda c, row: {state_and_row}, {state}, {rows})")


def _shard_map(
    shape: tuple[int, ...], function: Any, *, in_specs: Any, out_specs: Any, **_: Any
) -> Callable[[TensorText], TensorText]:
    def mapped(x: TensorText) -> TensorText:
        own, out = _entries(in_specs, x.ndim), _entries(out_specs, len(shape))
        part = TensorText(f"xs.enable_manual_sharding({x} * 1, {own}, mesh=mesh).global_tensor")
        whole = f"xs.disable_manual_sharding({function(part)}, {out}, {shape}, mesh=mesh)"
        return TensorText(f"{whole}.global_tensor")

    return mapped


def _collectives(mesh: MeshShape) -> Mapping[str, Any]:
    """Return those that torch_xla has for the parts of a manual region, over device ids."""

    def groups(axes: Any) -> list[list[int]]:
        names = axes if isinstance(axes, tuple) else (axes,)
        return [[mesh.devices[n] for n in group] for group in groups_of(names, mesh)]

    def reduced(reducer: str) -> Callable[[TensorText, Any], TensorText]:
        all_reduce = call("torch_xla._XLAC._xla_spmd_all_reduce")
        return lambda part, axes: all_reduce(reducer, part, 1.0, groups(axes))

    def scattered(part: TensorText, axes: Any, *, scatter_dimension: int, **_: Any) -> TensorText:
        scatter, every = call("torch_xla._XLAC._xla_spmd_reduce_scatter"), groups(axes)
        return scatter("sum", part, 1.0, scatter_dimension, len(every[0]), every)

    return {
        **{f"p{name}": reduced(name) for name in ("max", "min")},
        "psum": reduced("sum"),
        "psum_scatter": scattered,
    }
