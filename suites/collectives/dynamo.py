"""torch.compile's way to a program, stopped where torch_xla would execute it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm

from harness.ir import parse
from suites.collectives.programs import Fn, Job, PerRank
from suites.shared.tensors import to_numpy, to_torch

try:
    from torch_xla._dynamo import dynamo_bridge
except ImportError:  # torch_xla 2.4
    from torch_xla.core import dynamo_bridge

_BEGIN, _END = "## BEGIN_GRAPH\n", "\nGraph Hash"


def without_compiled_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would compile its shape guards with a C++ compiler, which need not be there."""
    option = "enable_cpp_symbolic_shape_guards"
    if hasattr(torch._dynamo.config, option):  # since torch 2.6
        monkeypatch.setattr(torch._dynamo.config, option, False)


def compile_graphs(fn: Fn, inputs: PerRank, saved: Path) -> list[Job]:
    """One job per graph that dynamo cuts `fn` into, compiled by torch_xla for all ranks.

    The backend is `openxla` up to the call that would execute the compiled graph, which would hang:
    torch_xla's CPU device can't run several replicas. `saved` is `XLA_SAVE_TENSORS_FILE`, with
    `XLA_SAVE_TENSORS_FMT=stablehlo`, set before torch_xla's runtime starts.
    """
    devices = xm.get_xla_supported_devices()
    xm.set_replication(torch.device(devices[0]), devices)
    xr.world_size()  # now cached, as it is in a job's processes; or else dynamo breaks the graph
    jobs: list[Job] = []

    def compile_(graph: torch.fx.GraphModule, _: Any) -> Any:
        def run(*args: torch.Tensor) -> Any:
            graph.xla_args = args
            _, outputs, _, _, _, matcher, *_ = _extract(graph)
            rows = [
                tuple(to_numpy(x) for x in matcher([to_torch(v).to(devices[0]) for v in values]))
                for values in inputs
            ]
            jobs.append(Job(parse(_last_graph(saved)), tuple(rows), ()))
            return outputs

        return make_boxed_func(run)

    compiled = torch.compile(fn, backend=aot_autograd(fw_compiler=compile_))
    compiled(*(to_torch(value).to(devices[0]) for value in inputs[0]))
    return jobs


def _extract(graph: torch.fx.GraphModule) -> tuple[Any, ...]:
    extract = dynamo_bridge.extract_graph_helper
    # torch_xla 2.4 takes no table of symbols.
    symbols: list[dict[Any, Any]] = [{}] if len(inspect.signature(extract).parameters) > 1 else []
    return extract(graph, *symbols)


def _last_graph(saved: Path) -> str:
    """Read the program that torch_xla wrote last; it appends the device's ordinal to the name."""
    (file,) = saved.parent.glob(saved.name + "*")
    return file.read_text().rsplit(_BEGIN, 1)[1].split(_END)[0]
