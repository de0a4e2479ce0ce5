"""torch_xla's ways from a collective to StableHLO; each ends in a `Job` that can be executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch_xla
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.stablehlo import StableHLOGraphModule, VariableType, exported_program_to_stablehlo

from harness.ir import Program, parse
from harness.oracles.replicas import execute
from suites.shared.tensors import to_numpy, to_torch

PerRank = Sequence[Sequence[np.ndarray]]
Fn = Callable[..., Any]


@dataclass(frozen=True)
class Job:
    """One program, and what each rank feeds it.

    `arguments[rank][i]` is the program's i-th input on that rank; `sources[i]` says where it comes
    from: the position of one of the model's inputs, the name of a parameter, or `None` when
    torch_xla added it.
    """

    program: Program
    arguments: tuple[tuple[np.ndarray, ...], ...]
    sources: tuple[int | str | None, ...]

    def run(self) -> list[list[np.ndarray]]:
        """`results[rank][output]`, from jaxlib's XLA."""
        return execute(self.program, self.arguments)


class Model(torch.nn.Module):
    """A function as the module that torch.export wants."""

    def __init__(self, fn: Fn) -> None:
        super().__init__()
        self._fn = fn

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._fn(*inputs)


def export(fn: Fn, inputs: PerRank, rank: int = 0) -> Job:
    """Export by torch.export and `exported_program_to_stablehlo` on `rank`."""
    return job_of(export_module(Model(fn), inputs[rank]), inputs)


def export_module(model: torch.nn.Module, inputs: Sequence[np.ndarray]) -> StableHLOGraphModule:
    exported = torch.export.export(model, tuple(map(to_torch, inputs)))
    return exported_program_to_stablehlo(exported)


def job_of(module: StableHLOGraphModule, inputs: PerRank) -> Job:
    """Return the bundle's program with the arguments that the bundle's own metadata names."""
    bundle = module._bundle
    sources: list[int | str | None] = []
    constants: list[Any] = []
    for location in bundle.stablehlo_funcs[0].meta.input_locations:
        name = location.type_ == VariableType.PARAMETER
        user = location.type_ == VariableType.INPUT_ARG
        sources.append(location.name if name else location.position if user else None)
        constants.append(
            bundle.state_dict[location.name]
            if name
            else None
            if user
            else bundle.additional_constants[location.position]
        )
    arguments = tuple(
        tuple(
            values[source] if isinstance(source, int) else constant
            for source, constant in zip(sources, constants, strict=True)
        )
        for values in inputs
    )
    return Job(parse(module.get_stablehlo_bytecode()), arguments, tuple(sources))


def trace(fn: Fn, inputs: PerRank) -> Job:
    """Trace `fn` lazily on every rank, and return the program that all ranks have in common.

    Raises:
        AssertionError: the ranks trace different programs, which no job of replicas can run.
    """
    jobs = trace_each(fn, inputs)
    texts = {job.program.text for job in jobs}
    assert len(texts) == 1, f"{len(jobs)} ranks traced {len(texts)} different programs"
    return Job(jobs[0].program, tuple(job.arguments[0] for job in jobs), jobs[0].sources)


def trace_each(fn: Fn, inputs: PerRank) -> list[Job]:
    """Trace on each rank, as a job of that rank alone. torch_xla executes nothing.

    One process plays every rank in turn: a rank is a device, made torch_xla's default, with all
    devices as replication devices, which is what makes `xr.world_size()` the number of ranks.
    """
    devices = xm.get_xla_supported_devices()
    assert len(devices) == len(inputs), f"{len(devices)} devices for {len(inputs)} ranks"
    jobs = []
    for rank, values in enumerate(inputs):
        xm.set_replication(torch.device(devices[rank]), devices)
        assert (xr.global_ordinal(), xr.world_size()) == (rank, len(devices))
        try:
            jobs.append(_trace(fn, [to_torch(value).to(devices[rank]) for value in values]))
        finally:  # or else printing a tensor, as a traceback does, would execute the program
            torch_xla._XLAC._clear_pending_irs(devices[rank])
    return jobs


def _trace(fn: Fn, inputs: list[torch.Tensor]) -> Job:
    positions = {torch_xla._XLAC._xla_get_tensor_id(value): i for i, value in enumerate(inputs)}
    result = fn(*inputs)
    outputs = list(result) if isinstance(result, (list, tuple)) else [result]
    ids, tensors = torch_xla._XLAC._get_tensors_xla_device_data_node(outputs)
    program = parse(xm.get_stablehlo_bytecode(outputs))
    sources = tuple(positions.get(id_) for id_ in ids)
    return Job(program, (tuple(map(to_numpy, tensors)),), sources)
