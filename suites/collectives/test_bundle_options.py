"""Options of exported bundles: what is in them, in their files, and what runs them again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla
from torch_xla.core import xla_model as xm
from torch_xla.stablehlo import (
    StableHLOExportOptions,
    StableHLOGraphModule,
    VariableType,
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)

from harness.session.fixtures import StartRuntime
from suites.shared.torch_xla_releases import since_2_9

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.topologies(1),
    pytest.mark.upstream("pytorch/xla#5476"),
    since_2_9,
]


class Layer(torch.nn.Module):
    """Takes tensors in containers beside others that it does not use, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
        self.register_buffer("offset", torch.linspace(2, 3, 3))
        self.register_buffer("calls", torch.tensor(0))
        self.table = torch.arange(3.0) * 1.5

    def forward(
        self, pair: list[torch.Tensor], unused: torch.Tensor, named: dict[str, torch.Tensor]
    ) -> dict[str, Any]:
        del unused
        self.calls += 1
        result = pair[0] @ self.weight + self.offset - pair[1] * self.table
        return {"sum": (result, result.sum(-1)), "y": named["y"] * 3}


def _inputs() -> tuple[Any, ...]:
    x, y = torch.linspace(0, 1, 8).reshape(4, 2), torch.linspace(1, 2, 3)
    return [x, y], torch.zeros(5, dtype=torch.int32), {"y": torch.tensor([1, 2])}


def _exported() -> torch.export.ExportedProgram:
    return torch.export.export(Layer(), _inputs())


def _check(results: Any) -> None:
    expected = Layer()(*_inputs())
    assert list(results) == ["sum", "y"]
    assert isinstance(results["sum"], tuple)
    for got, wanted in zip(results["sum"], expected["sum"], strict=True):
        torch.testing.assert_close(got.cpu(), wanted.detach(), rtol=1e-5, atol=1e-5)
    assert results["y"].cpu().tolist() == [3, 6]


@pytest.mark.parametrize("inlined", [True, False])
def test_whole_bundle(start_runtime: StartRuntime, tmp_path: Path, inlined: bool) -> None:
    """Built, saved and loaded, it computes the model; its files are those that are documented."""
    start_runtime(spmd=False)
    options = StableHLOExportOptions(inline_all_constant=inlined)
    module = exported_program_to_stablehlo(_exported(), options)
    _check(module(*_inputs()))
    _check(module.evaluate("forward", _inputs()))
    for _ in range(2):  # the second time into the files of the first
        module.save(tmp_path / "x")
    loaded = StableHLOGraphModule.load(tmp_path / "x")
    _check(loaded(*_inputs()))
    constants = [np.load(each).tolist() for each in (tmp_path / "x" / "constants").iterdir()]
    assert constants == ([] if inlined else [3])
    assert ("dense<3>" in module.get_stablehlo_text()) == inlined
    files = {str(each.relative_to(tmp_path / "x")) for each in (tmp_path / "x").rglob("*.*")}
    assert {f"functions/forward.{kind}" for kind in ("meta", "bytecode", "mlir")} <= files
    data = {each.name: np.load(each) for each in (tmp_path / "x" / "data").iterdir()}
    for name in ("weight", "offset"):
        np.testing.assert_array_equal(data[name], getattr(Layer(), name).detach().numpy())
    assert loaded.get_stablehlo_bytecode() == module.get_stablehlo_bytecode("forward")
    text = module.get_stablehlo_text("forward")
    assert module.get_stablehlo_text() == text
    assert loaded.get_stablehlo_text() in {text, text.encode()}
    with pytest.raises(KeyError):
        module.evaluate("backward", _inputs())


def test_metadata(start_runtime: StartRuntime, tmp_path: Path) -> None:
    """Shapes and types of what the program takes, of what it leaves out, and of its results."""
    start_runtime(spmd=False)
    module = exported_program_to_stablehlo(_exported())
    module.save(tmp_path)
    meta = json.loads((tmp_path / "functions" / "forward.meta").read_text())
    assert meta["name"] == "forward"
    inputs = {
        (place["type_"], place["position"], place["name"]): (each["shape"], each["dtype"])
        for place, each in zip(meta["input_locations"], meta["input_signature"], strict=True)
    }
    assert inputs[VariableType.INPUT_ARG.value, 0, ""] == ([4, 2], "float32")
    assert inputs[VariableType.INPUT_ARG.value, 1, ""] == ([3], "float32")
    assert inputs[VariableType.INPUT_ARG.value, 3, ""] == ([2], "int64")
    assert inputs[VariableType.PARAMETER.value, -1, "weight"] == ([2, 3], "float32")
    assert inputs[VariableType.PARAMETER.value, -1, "offset"] == ([3], "float32")
    outputs = [(each["shape"], each["dtype"]) for each in meta["output_signature"]]
    assert outputs == [([4, 3], "float32"), ([4], "float32"), ([2], "int64")]
    assert all(each["dynamic_dims"] == [] for each in meta["input_signature"])


def test_unused_inputs(start_runtime: StartRuntime) -> None:
    """A tensor and a number that nothing reads are listed, with the types that they had."""
    start_runtime(spmd=False)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, n: int, z: torch.Tensor) -> Any:
            del y, n
            return x - z

    given = (torch.ones(2), torch.ones(3, dtype=torch.int32), 5, torch.ones(2) * 4)
    module = exported_program_to_stablehlo(torch.export.export(Model(), given))
    (meta,) = [func.meta for func in module._bundle.stablehlo_funcs]
    unused = [(place.position, each.shape, each.dtype) for place, each in meta.unused_inputs]
    assert unused == [(1, [3], "int32"), (2, [], "int")]
    assert [place.position for place in meta.input_locations] in ([0, 3], [3, 0])
    assert module(*given).cpu().tolist() == [-3.0, -3.0]


def test_files_left_out(start_runtime: StartRuntime, tmp_path: Path) -> None:
    """Without weights, without text: the rest is as it was."""
    start_runtime(spmd=False)
    without = StableHLOExportOptions(save_weights=False, include_human_readable_text=False)
    exported = _exported()
    save_as_stablehlo(exported, tmp_path / "a", without)
    assert not (tmp_path / "a" / "data").exists()
    assert not (tmp_path / "a" / "functions" / "forward.mlir").exists()
    loaded = StableHLOGraphModule.load(tmp_path / "a")
    assert loaded._bundle.state_dict == {}
    assert loaded.get_stablehlo_text() is None
    with pytest.raises(KeyError):
        loaded(*_inputs())
    save_torch_model_as_stablehlo(Layer(), _inputs(), tmp_path / "b")
    loaded = StableHLOGraphModule.load(tmp_path / "b")
    _check(loaded(*_inputs()))
    save_as_stablehlo(exported, tmp_path / "c", StableHLOExportOptions(export_weights=False))
    assert list((tmp_path / "c" / "data").iterdir()) == []
    assert "stablehlo" in (tmp_path / "c" / "functions" / "forward.mlir").read_text()


def test_state_of_the_process(start_runtime: StartRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export leaves neither its options nor its graph behind, and says where a line is from."""
    start_runtime(spmd=False)
    monkeypatch.setenv("XLA_HLO_DEBUG", "0")
    options = StableHLOExportOptions(export_node_metadata=True)
    pending = torch.ones(2, device="xla") + 3
    module = exported_program_to_stablehlo(_exported(), options)
    assert os.environ["XLA_HLO_DEBUG"] == "0"
    _check(module(*_inputs()))
    assert pending.cpu().tolist() == [4.0, 4.0]
    # Only zeros and ones are constants of an ordinary graph.
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    text = xm.get_stablehlo([x * 7])
    assert "7.0" not in text


def test_refused_models(start_runtime: StartRuntime) -> None:
    """Keyword arguments, and operations that XLA has no lowering of, are refused by name."""
    start_runtime(spmd=False)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor | None = None) -> Any:
            return x if y is None else torch.special.zeta(x, y)

    x = torch.ones(2) * 2
    named = torch.export.export(Model(), (x,), {"y": x})
    with pytest.raises(AssertionError, match="support kwargs yet"):
        exported_program_to_stablehlo(named)

    class Fallback(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.special.zeta(x, x)

    with pytest.raises(RuntimeError, match=r"not capturable by Pytorch/XLA: aten::special_zeta"):
        exported_program_to_stablehlo(torch.export.export(Fallback(), (x,)))


def test_operators_of_a_library(start_runtime: StartRuntime) -> None:
    """Operators of a library that is named become calls, with the shapes of their results."""
    start_runtime(spmd=False)

    @torch.library.custom_op("bundle_options::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return twice(x) + 1

    options = StableHLOExportOptions(custom_ops_allowed_in_graph={"bundle_options"})
    exported = torch.export.export(Model(), (torch.ones(2, 3),))
    text = exported_program_to_stablehlo(exported, options).get_stablehlo_text()
    (line,) = [each for each in text.splitlines() if "custom_call" in each]
    assert "@bundle_options.twice.default" in line
    assert "-> tensor<2x3xf32>" in line
