"""Random programs as tests of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.fuzz.draft import DraftValue, FinishedDraft, MeshShape, rows, spec_text, type_text

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
_GSPMD = '    jax.config.update("jax_use_shardy_partitioner", False)\n'


@dataclass(frozen=True)
class JaxText:
    """Writes a jitted function with its shardings."""

    mesh: MeshShape
    framework = "jax"

    def lines(
        self, name: str, text: str, operands: Sequence[DraftValue], _shape: Sequence[int], /
    ) -> list[str]:
        """Return the statement."""
        return [f"{name} = {text.format(*(operand.name for operand in operands))}"]

    def text(self, program: FinishedDraft) -> str:
        """Return a test that any pytest runs, whose ``program()`` returns the jitted function."""
        draft = program.draft
        given = [value for value, _, _ in draft.arguments]
        names = ", ".join(value.name for value in given)
        body = list(draft.lines)
        if program.gradients_of:
            sums = [f"({v.name} * {_weights(v.shape)}).sum()" for v in program.results]
            body = [*body, f"return {' + '.join(sums)}"]
            body = [f"def total({names}):", *(f"    {line}" for line in body)]
            numbers = tuple(given.index(value) for value in program.gradients_of)
            body.append(f"return jax.grad(total, {numbers})({names})")
        else:
            body.append(f"return ({', '.join(value.name for value in program.results)},)")
        options = ""
        if program.specs is not None:
            outs = ", ".join(f"NamedSharding(mesh, {spec_text(spec)})" for spec in program.specs)
            options += f", out_shardings=({outs},)"
        if program.is_donated:
            options += ", donate_argnums=(0,)"
        axes = self.mesh.axes
        return _TEXT.format(
            given=rows(f"{text}.astype({type_text(v.dtype)})" for v, text, _ in draft.arguments),
            expected=program.expected_text,
            devices=list(self.mesh.devices),
            shape=tuple(axes.values()),
            names=tuple(axes),
            types=_EXPLICIT.format(len(axes)) if draft.is_explicit else "",
            arguments=names,
            body="\n".join(f"        {line}" for line in body),
            divided=", ".join(spec_text(spec) for _, _, spec in draft.arguments),
            options=options,
            before=_GSPMD if program.is_gspmd else "",
            rounding=program.rounding,
        )


def _weights(shape: Sequence[int]) -> str:
    count = int(np.prod(shape, dtype=int))
    return f"(jnp.arange({count}) % 3 - 1.0).reshape({tuple(shape)})"
