"""The exported bundle: arguments, parameters and outputs, built, saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    exported_program_to_stablehlo,
    save_as_stablehlo,
)

from harness.ir import parse
from harness.oracles import collectives as oracle
from harness.session.fixtures import StartRuntime
from suites.collectives.checks import check_reducer
from suites.collectives.programs import Model, export, job_of
from suites.shared.comparison import check_numbers
from suites.shared.tensors import to_numpy, to_torch
from suites.shared.values import columns, ranks_of

pytestmark = [pytest.mark.lanes("cpu", "virtual-*"), pytest.mark.upstream("pytorch/xla#5544")]

functional = torch.ops._c10d_functional


def _all_reduce(x: torch.Tensor, group: str) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(x, "sum", group))


class Layer(torch.nn.Module):
    """Parameters, a buffer, two inputs and two outputs around a reduction."""

    def __init__(self, group: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 2], [3, 4], [5, 6]], dtype=dtype))
        self.register_buffer("offset", torch.tensor([1.0, -1, 2], dtype=dtype))
        self._group = group

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        reduced = _all_reduce(x @ self.weight.T + self.offset, self._group)
        return y - reduced, reduced * 2

    @staticmethod
    def expected(xs: list[np.ndarray], ys: list[np.ndarray]) -> list[list[np.ndarray]]:
        weight = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        offset = np.array([1, -1, 2], np.float32)
        reduced = oracle.all_reduce([x @ weight.T + offset for x in xs], "sum")
        return [[y - r for y, r in zip(ys, reduced, strict=True)], [r * 2 for r in reduced]]


def _layer_inputs(world: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return ranks_of(world, (4, 2)), ranks_of(world, (4, 3))


def _exported(model: torch.nn.Module, inputs: list[np.ndarray]) -> torch.export.ExportedProgram:
    return torch.export.export(model, tuple(map(to_torch, inputs)))


MODELS: dict[str, Callable[[torch.Tensor, torch.Tensor, str], Any]] = {
    "in_order": lambda x, y, group: _all_reduce(x, group) - y,
    "swapped": lambda x, y, group: _all_reduce(y, group) - x,
    "second_first": lambda x, y, group: y - _all_reduce(x, group),
    "both": lambda x, y, group: _all_reduce(x, group) * 2 - _all_reduce(y, group),
    "second_only": lambda x, y, group: _all_reduce(y, group),
}


def _expected(name: str, xs: list[np.ndarray], ys: list[np.ndarray]) -> list[np.ndarray]:
    reduced_x, reduced_y = oracle.all_reduce(xs, "sum"), oracle.all_reduce(ys, "sum")
    combine: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
        "in_order": lambda x, y, rx, ry: rx - y,
        "swapped": lambda x, y, rx, ry: ry - x,
        "second_first": lambda x, y, rx, ry: y - rx,
        "both": lambda x, y, rx, ry: rx * 2 - ry,
        "second_only": lambda x, y, rx, ry: ry,
    }
    return [combine[name](*ranks) for ranks in zip(xs, ys, reduced_x, reduced_y, strict=True)]


@pytest.mark.topologies(2)
@pytest.mark.parametrize("name", MODELS)
class TestInputOrder:
    """Two inputs of one type: only their order tells them apart."""

    def test_metadata(self, world: int, group: str, name: str, start_runtime: StartRuntime) -> None:
        """Fed as the bundle's metadata says, the program computes the model."""
        start_runtime(spmd=False)
        xs, ys = ranks_of(world, (3, 2)), [-value for value in ranks_of(world, (3, 2))]
        job = export(lambda x, y: MODELS[name](x, y, group), columns(xs, ys))
        check_numbers(job.run(), _expected(name, xs, ys))

    def test_signature(
        self, world: int, group: str, name: str, start_runtime: StartRuntime
    ) -> None:
        """The program's own arguments are the model's, in the model's order."""
        start_runtime(spmd=False)
        xs, ys = ranks_of(world, (3, 2)), [-value for value in ranks_of(world, (3, 2))]
        job = export(lambda x, y: MODELS[name](x, y, group), columns(xs, ys))
        used = [1] if name == "second_only" else [0, 1]
        got = [source for source in job.sources if source is not None]
        assert got == used, f"argument order: expected inputs {used}, got {got}"


@pytest.mark.topologies(2)
@pytest.mark.parametrize("alias", ["same", "equal", "view"])
def test_example_inputs_are_only_examples(
    world: int, group: str, alias: str, start_runtime: StartRuntime
) -> None:
    """However the example tensors relate to each other, the model has two inputs."""
    start_runtime(spmd=False)
    x = torch.ones(3)
    y = {"same": x, "equal": torch.ones(3), "view": x.view(3)}[alias]
    exported = torch.export.export(Model(lambda x, y: _all_reduce(x, group) - y), (x, y))
    xs, ys = ranks_of(world, (3,)), [-value for value in ranks_of(world, (3,))]
    job = job_of(exported_program_to_stablehlo(exported), columns(xs, ys))
    got = sorted(source for source in job.sources if isinstance(source, int))
    assert got == [0, 1], f"sources: expected inputs [0, 1], got {got}"
    check_numbers(job.run(), _expected("in_order", xs, ys))


class TestBundle:
    @pytest.mark.topologies(1, 2, 4, 8)
    def test_parameters_and_outputs(
        self, world: int, group: str, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        xs, ys = _layer_inputs(world)
        exported = _exported(Layer(group), [xs[0], ys[0]])
        job = job_of(exported_program_to_stablehlo(exported), columns(xs, ys))
        check_reducer(job.program.only("all_reduce"), "add")
        check_numbers(job.run(), *Layer.expected(xs, ys))

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("option", ["none", "no_text", "no_inlining", "node_metadata"])
    def test_saved_and_loaded(
        self, world: int, group: str, tmp_path: Path, option: str, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        options = {
            "none": StableHLOExportOptions(),
            "no_text": StableHLOExportOptions(include_human_readable_text=False),
            "no_inlining": StableHLOExportOptions(inline_all_constant=False),
            "node_metadata": StableHLOExportOptions(export_node_metadata=True),
        }[option]
        xs, ys = _layer_inputs(world)
        save_as_stablehlo(_exported(Layer(group), [xs[0], ys[0]]), tmp_path, options)
        job = job_of(StableHLOGraphModule.load(tmp_path), columns(xs, ys))
        check_reducer(job.program.only("all_reduce"), "add")
        check_numbers(job.run(), *Layer.expected(xs, ys))

    @pytest.mark.topologies(2)
    def test_saving_keeps_program_and_metadata(
        self, world: int, group: str, tmp_path: Path, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        xs, ys = _layer_inputs(world)
        module = exported_program_to_stablehlo(_exported(Layer(group), [xs[0], ys[0]]))
        module.save(tmp_path)
        loaded = StableHLOGraphModule.load(tmp_path)
        before, after = job_of(module, columns(xs, ys)), job_of(loaded, columns(xs, ys))
        assert after.program.text == before.program.text
        assert after.sources == before.sources
        arguments = zip(before.arguments[0], after.arguments[0], strict=True)
        changed = [n for n, (old, new) in enumerate(arguments) if not np.array_equal(old, new)]
        assert not changed, f"arguments {changed} changed"

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("state", ["built", "loaded"])
    def test_text_is_the_bytecode(
        self, world: int, group: str, tmp_path: Path, state: str, start_runtime: StartRuntime
    ) -> None:
        start_runtime(spmd=False)
        xs, ys = _layer_inputs(world)
        module = exported_program_to_stablehlo(_exported(Layer(group), [xs[0], ys[0]]))
        if state == "loaded":
            module.save(tmp_path)
            module = StableHLOGraphModule.load(tmp_path)
        text = module.get_stablehlo_text()
        assert isinstance(text, str), f"text: expected str, got {type(text).__name__}"
        assert parse(text) == parse(module.get_stablehlo_bytecode())

    @pytest.mark.topologies(2)
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_weights_of_dtype(self, start_runtime: StartRuntime, group: str, dtype: str) -> None:
        start_runtime(spmd=False)
        x, y = ranks_of(1, (4, 2), dtype)[0], ranks_of(1, (4, 3), dtype)[0]
        module = exported_program_to_stablehlo(
            _exported(Layer(group, getattr(torch, dtype)), [x, y])
        )
        assert set(module._bundle.state_dict) == {"weight", "offset"}

    @pytest.mark.topologies(1)
    def test_is_callable_at_world_size_one(
        self, world: int, group: str, start_runtime: StartRuntime
    ) -> None:
        """Executed by torch_xla itself."""
        start_runtime(spmd=False)
        xs, ys = _layer_inputs(world)
        module = exported_program_to_stablehlo(_exported(Layer(group), [xs[0], ys[0]]))
        results = module(to_torch(xs[0]), to_torch(ys[0]))
        check_numbers([list(map(to_numpy, results))], *Layer.expected(xs, ys))
