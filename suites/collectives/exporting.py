"""What a rank of a running job exports, by each framework's own way to StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from harness.ir import Program, parse
from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles.replicas import execute
from suites.shared.backends import BACKENDS
from suites.shared.tensors import to_torch

Model = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Exported:
    """A program, and the values that this rank gives to its parameters.

    ``artifact`` is StableHLO's portable artifact.
    """

    artifact: bytes
    arguments: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Job:
    """The one program that all ranks export, and each rank's arguments."""

    program: Program
    arguments: tuple[tuple[np.ndarray, ...], ...]

    def run(self) -> list[list[np.ndarray]]:
        """``results[rank][output]``, of as many replicas as there are ranks, from jaxlib's XLA."""
        return execute(self.program, self.arguments)


class _Module(torch.nn.Module):
    """A function as the module that torch.export wants."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._model(x)


def export(model: Callable[[], Model], inputs: Sequence[np.ndarray], target: Target) -> Job:
    """Export on every rank of a job; ``model`` is called where the process group exists.

    Raises:
        AssertionError: the ranks export different programs, which no job of replicas can run.
        RankError: a rank raised.
    """
    backend, exporter = BACKENDS[target.framework], EXPORTERS[target.framework]

    def ask(number: int) -> Exported:
        backend.join()
        exported = exporter(model(), inputs[number])
        backend.settle()
        return exported

    ranks = run_ranks(ask, target.topology)
    programs = [parse(each.artifact) for each in ranks]
    texts = {program.text for program in programs}
    assert len(texts) == 1, f"{len(ranks)} ranks exported {len(texts)} different programs"
    return Job(programs[0], tuple(each.arguments for each in ranks))


def _by_torch_xla(model: Model, values: np.ndarray) -> Exported:
    from suites.collectives import programs

    job = programs.export(model, [(values,)])
    return Exported(job.program.artifact, job.arguments[0])


def _by_torch_tpu(model: Model, values: np.ndarray) -> Exported:
    from torch_tpu._internal.export import exported_to_mlir

    exported = torch.export.export(_Module(model), (to_torch(values).to("tpu"),))
    return Exported(exported_to_mlir(exported).serialize_portable_artifact(), (values,))


EXPORTERS: Mapping[str, Callable[[Model, np.ndarray], Exported]] = {
    "torch_xla": _by_torch_xla,
    "torch_tpu": _by_torch_tpu,
}
