"""The other ways out: strict export, lazy tracing's own dump, dynamo, one device for many ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch_xla
from torch_xla import runtime as xr
from torch_xla.core import xla_model as xm
from torch_xla.stablehlo import exported_program_to_stablehlo

from harness.ir import parse
from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_reducer
from suites.collectives.dynamo import compile_graphs, without_compiled_guards
from suites.collectives.programs import export, job_of
from suites.shared.comparison import check_numbers
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import columns, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#8854")]

functional = torch.ops._c10d_functional


@pytest.mark.topologies(4)
@pytest.mark.parametrize("spelling", ["in_place", "functional"])
@pytest.mark.usefixtures("group")
def test_strict_export(
    world: int, spelling: str, monkeypatch: pytest.MonkeyPatch, start_runtime: StartRuntime
) -> None:
    """Through dynamo, which rewrites `dist.all_reduce`."""
    start_runtime(spmd=False)
    without_compiled_guards(monkeypatch)

    class Strict(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if spelling == "functional":
                return torch.ops._c10d_functional.wait_tensor(
                    torch.ops._c10d_functional.all_reduce(x, "sum", "0")
                )
            y = x.clone()
            dist.all_reduce(y)
            return y

    inputs = ranks_of(world, (3, 2))
    exported = torch.export.export(Strict(), (to_torch(inputs[0]),), strict=True)
    job = job_of(exported_program_to_stablehlo(exported), columns(inputs))
    check_reducer(job.program.only("all_reduce"), "add")
    check_numbers(job.run(), oracle.all_reduce(inputs, "sum"))


@pytest.mark.topologies(4)
@pytest.mark.parametrize("roots", ["named", "all"])
def test_get_stablehlo_text_is_the_bytecode(start_runtime: StartRuntime, roots: str) -> None:
    start_runtime(spmd=False)
    devices = xm.get_xla_supported_devices()
    xm.set_replication(torch.device(devices[0]), devices)
    x = torch.ones(3, 2).to(devices[0])
    reduced = xm.all_reduce("sum", x)
    tensors = [reduced] if roots == "named" else None
    text, bytecode = xm.get_stablehlo(tensors), xm.get_stablehlo_bytecode(tensors)
    torch_xla._XLAC._clear_pending_irs(devices[0])
    assert parse(text) == parse(bytecode)
    check_reducer(parse(text).only("all_reduce"), "add")


COMPILED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "functional": (lambda x: functional.wait_tensor(functional.all_reduce(x, "sum", "")), "sum"),
    "xm": (lambda x: xm.all_reduce("max", x), "max"),
}


class TestDynamo:
    @pytest.fixture
    def saved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where torch_xla writes the graphs it compiles; asked for before the runtime starts."""
        monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", str(tmp_path / "graphs"))
        monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "stablehlo")
        without_compiled_guards(monkeypatch)
        return tmp_path / "graphs"

    @pytest.mark.topologies(2, 4, 8)
    @pytest.mark.parametrize("spelling", COMPILED)
    def test_compiles_one_graph(
        self, saved: Path, world: int, spelling: str, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        reduce, reducer = COMPILED[spelling]
        inputs = ranks_of(world, (3, 2))
        jobs = compile_graphs(lambda x: reduce(x * 2) + 1, columns(inputs), saved)
        assert len(jobs) == 1, f"graphs: expected 1, got {len(jobs)}"
        reduced = oracle.all_reduce([value * 2 for value in inputs], reducer)
        check_numbers(jobs[0].run(), [value + 1 for value in reduced])

    @pytest.mark.topologies(1)
    @pytest.mark.parametrize("spelling", COMPILED)
    @pytest.mark.usefixtures("saved")
    def test_executes_at_world_size_one(self, start_runtime: StartRuntime, spelling: str) -> None:
        start_runtime(spmd=False)
        xr.world_size()  # now cached: dynamo can't trace how it is found
        value = ranks_of(1, (3, 2))[0]
        compiled = torch.compile(COMPILED[spelling][0], backend="openxla")
        got = compiled(to_torch(value).to(torch_xla.device()))
        check_numbers([[to_numpy(got)]], [value])


MORE_RANKS: dict[str, tuple[Callable[..., Any], Callable[..., list[np.ndarray]]]] = {
    "all_reduce": (
        lambda x, group: functional.all_reduce(x, "sum", group),
        lambda xs: oracle.all_reduce(xs, "sum"),
    ),
    "all_gather": (
        lambda x, group: functional.all_gather_into_tensor(x, 4, group),
        lambda xs: oracle.all_gather(xs, 0),
    ),
    "reduce_scatter": (
        lambda x, group: functional.reduce_scatter_tensor(x, "sum", 4, group),
        lambda xs: oracle.reduce_scatter(xs, "sum", 0),
    ),
    "all_to_all": (
        lambda x, group: functional.all_to_all_single(x, [1] * 4, [1] * 4, group),
        lambda xs: oracle.all_to_all(xs, 0, 0),
    ),
}


@pytest.mark.topologies(1)
@pytest.mark.upstream("pytorch/xla#9068")
@pytest.mark.parametrize("kind", MORE_RANKS)
def test_export_for_more_ranks_than_devices(
    group_of_four: str, kind: str, start_runtime: StartRuntime
) -> None:
    """A machine with one device exports for a job of four ranks."""
    start_runtime(spmd=False)
    call, expected = MORE_RANKS[kind]
    inputs = ranks_of(4, (4, 2))
    job = export(lambda x: functional.wait_tensor(call(x, group_of_four)), columns(inputs))
    check_numbers(job.run(), expected(inputs))
