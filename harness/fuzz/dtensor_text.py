"""Random programs as tests of DTensor, in as many processes as the mesh has devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.fuzz.draft import DraftValue, FinishedDraft, MeshShape, rows
from harness.fuzz.torch_words import TensorText, common_fields, gradient_lines, statement

_TEXT = """\
import os
import socket

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
{imports}
DEVICE = "{device}"{other}
GIVEN = [{given}]
PLACEMENTS = [{placements}]
EXPECTED = [{expected}]


def program():
    mesh = DeviceMesh(DEVICE, torch.tensor({devices}).reshape({shape}), mesh_dim_names={names})
    pairs = zip(GIVEN, PLACEMENTS, strict=True)
    given = [distribute_tensor(x.to(DEVICE), mesh, own) for x, own in pairs]
    with implicit_replication():
        results = computed(mesh, *given)
    return [result.full_tensor().detach().cpu() for result in results]


def computed(mesh, {arguments}):
{body}


def rank(number, count):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
    os.environ.update(WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    dist.init_process_group({{"cpu": "gloo"}}.get(DEVICE, DEVICE))
    for result, expected in zip(program(), EXPECTED, strict=True):
        result = result.double().numpy()
        np.testing.assert_allclose(result, expected, rtol={rounding}, atol={rounding})
    dist.destroy_process_group()


def test_program():
    if DEVICE == "tpu":
        torch.tpu.distributed.set_tpu_launch_env(nproc_per_node={count})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.multiprocessing.spawn(rank, ({count},), {count})
"""
RANKS = 4  # of the job of each program
_FUNCOL = "import torch.distributed._functional_collectives as funcol"
_LOCAL_MAP = "from torch.distributed.tensor.experimental import local_map"


@dataclass(frozen=True)
class DTensorText:
    """Writes eager operators on DTensors of a device, such as ``cpu``."""

    mesh: MeshShape
    framework: str
    device: str

    def lines(
        self, name: str, text: str, operands: Sequence[DraftValue], _shape: Sequence[int], /
    ) -> list[str]:
        """Return the statement."""
        lax = {
            "with_sharding_constraint": lambda x, spec: TensorText(
                f"{x}.redistribute(placements={self._placements(spec)})"
            ),
            **_collectives([*self.mesh.axes]),
        }
        return statement(name, text, operands, self._mapped, lax)

    def text(self, program: FinishedDraft) -> str:
        """Return a test that any pytest runs, which starts a process for each device."""
        draft = program.draft
        body = [f"{value.name}.requires_grad_()" for value in program.gradients_of]
        body += draft.lines
        if program.gradients_of:
            body += gradient_lines(program)
        else:
            names = [value.name for value in program.results]
            for number, spec in enumerate(program.specs or ()):
                names[number] += f".redistribute(placements={self._placements(spec)})"
            body.append(f"return {', '.join(names)},")
        used = "\n".join(body)
        imports = [line for line in (_FUNCOL, _LOCAL_MAP) if f"{line.rpartition(' ')[2]}" in used]
        return _TEXT.format(
            imports="".join(f"{line}\n" for line in imports),
            device=self.device,
            other="" if self.device == "cpu" else '  # or "cpu", for PyTorch\'s own backend',
            placements=rows(self._placements(spec) for _, _, spec in draft.arguments),
            count=self.mesh.count,
            **common_fields(program, body),
        )

    def _placements(self, spec: Sequence[Any]) -> str:
        """Return where each axis of the mesh has its parts.

        DTensor divides a dimension by the mesh's axes in their order, whatever the spec's. That
        changes no number, but for a function of each part.
        """
        dimensions = {axis: n for n, axes in enumerate(spec) for axis in _axes(axes)}
        texts = [
            f"Shard({dimensions[axis]})" if axis in dimensions else "Replicate()"
            for axis in self.mesh.axes
        ]
        return f"[{', '.join(texts)}]"

    def _mapped(
        self, function: Any, *, in_specs: Any, out_specs: Any, **_: Any
    ) -> Callable[[TensorText], TensorText]:
        order = [*self.mesh.axes]
        for entry in (*in_specs, *out_specs):
            axes = _axes(entry)
            if [*axes] != sorted(axes, key=order.index):
                raise AttributeError("DTensor has another order of parts")
        own, out = self._placements(in_specs), self._placements(out_specs)
        options = f"in_placements=({own},), device_mesh=mesh, redistribute_inputs=True"

        def mapped(x: TensorText) -> TensorText:
            return TensorText(
                f"local_map(lambda p: {function(TensorText('p'))}, {out}, {options})({x})"
            )

        return mapped


def _axes(entry: Any) -> Sequence[str]:
    """Return the axes of an entry of a partition spec."""
    return entry if isinstance(entry, tuple) else (entry,) if entry else ()


def _collectives(order: Sequence[str]) -> Mapping[str, Any]:
    """Return the collectives of a function of each part."""

    def along(axes: Any) -> list[str]:
        """Return the groups, the last axis first: its parts are beside each other."""
        return [f"(mesh, {order.index(axis)})" for axis in _axes(axes)][::-1]

    def reduced(reducer: str) -> Callable[[TensorText, Any], TensorText]:
        def call(part: TensorText, axes: Any) -> TensorText:
            for group in along(axes):
                part = TensorText(f'funcol.all_reduce({part}, "{reducer}", {group})')
            return part

        return call

    def gathered(part: TensorText, axes: Any, *, axis: int, **_: Any) -> TensorText:
        for group in along(axes):
            part = TensorText(f"funcol.all_gather_tensor({part}, {axis}, {group})")
        return part

    def scattered(part: TensorText, axes: Any, *, scatter_dimension: int, **_: Any) -> TensorText:
        for group in along(axes)[::-1]:
            text = f'funcol.reduce_scatter_tensor({part}, "sum", {scatter_dimension}, {group})'
            part = TensorText(text)
        return part

    return {
        "psum": reduced("sum"),
        "pmax": reduced("max"),
        "pmin": reduced("min"),
        "all_gather": gathered,
        "psum_scatter": scattered,
        "axis_index": lambda axis: TensorText(f'torch.tensor(mesh.get_local_rank("{axis}"))'),
    }
