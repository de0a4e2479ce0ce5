"""A module's parameters, buffers and inputs in the program that TorchTPU exports, in that order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.ir import parse
from harness.job.ranks import run_ranks
from harness.model.topology import Target
from harness.oracles import collectives as oracle
from harness.oracles.replicas import execute
from suites.shared.backends import BACKENDS
from suites.shared.comparison import check_numbers
from suites.shared.tensors import to_torch
from suites.shared.values import ranks_of

pytestmark = [
    pytest.mark.lanes("virtual-tpu"),
    pytest.mark.frameworks("torch_tpu"),
    pytest.mark.topologies("4@chip"),
    pytest.mark.upstream("pytorch/xla#8854"),
]
functional = torch.ops._c10d_functional


@dataclass(frozen=True)
class Values:
    """What one rank has, each of another shape."""

    weight: np.ndarray
    scale: np.ndarray
    x: np.ndarray

    def total(self) -> np.ndarray:
        return self.x * self.scale - self.weight


class _Model(torch.nn.Module):
    def __init__(self, values: Values) -> None:
        super().__init__()
        self.register_buffer("scale", to_torch(values.scale))
        self.weight = torch.nn.Parameter(to_torch(values.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * self.scale - self.weight, "sum", _world())
        return functional.wait_tensor(total)


def _world() -> str:
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)


def _values(ranks: int) -> list[Values]:
    return [Values(part[:1], part[1], part[2:]) for part in ranks_of(ranks, (6, 3))]


def test_order(xla_target: Target) -> None:
    backend, values = BACKENDS[xla_target.framework], _values(xla_target.topology.total)

    def export(number: int) -> bytes:
        from torch_tpu._internal.export import exported_to_mlir

        device, own = backend.join(), values[number]
        exported = torch.export.export(_Model(own).to(device), (to_torch(own.x).to(device),))
        artifact: bytes = exported_to_mlir(exported).serialize_portable_artifact()
        backend.settle()
        return artifact

    artifacts = run_ranks(export, xla_target.topology)
    arguments = [(own.weight, own.scale, own.x) for own in values]
    results = execute(parse(artifacts[0]), arguments)
    check_numbers(results, oracle.all_reduce([own.total() for own in values], "sum"))


class _Step(torch.nn.Module):
    """A model that changes a buffer, and whose results are alike, none, views or what it takes."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3, device=device))
        self.weight = torch.nn.Parameter(torch.tensor([[2.0], [3.0]], device=device))
        self.table = torch.tensor([1.0, 2.0, 4.0], device=device)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        assert isinstance(self.count, torch.Tensor)
        self.count.add_(x[0])
        product = x * self.table + self.weight * 5
        return {"a": product, "b": None, "c": product, "d": product.T, "e": y, "f": product[1]}


class _Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.dropout(x, 0.25), torch.rand(64, device=x.device)


def _export_step(_: int) -> tuple[bytes, list[int | None], list[int], list[bool], str]:
    """Return the program, which result each output is, and whether texts name this file.

    Also return each result's first output, and the program as bytecode.
    """
    from torch_tpu._internal.export import exported_to_mlir

    device = BACKENDS["torch_tpu"].join()
    x, y = (torch.arange(6.0).reshape(2, 3).to(device) + n for n in (0, 7))
    # Without decompositions a buffer is changed in place, and the program does not return it.
    exported = torch.export.export(_Step(device), (x, y)).run_decompositions({})
    made = exported_to_mlir(exported)
    numbered = [
        torch.full(result.shape, float(number), device=device)
        for number, result in enumerate(made.mlir_result_tensors)
    ]
    outputs = made.reconstruct_fx_outputs_fn([], numbered)
    which = [None if output is None else int(output.flatten()[0]) for output in outputs]
    texts = [made.serialize_text(debug) for debug in (True, False)]
    named = ["test_export_of_parameters.py" in text for text in texts]
    first = list(made.unique_output_indices)
    return made.serialize_portable_artifact(), which, first, named, made.serialize_bytecode().hex()


@pytest.mark.topologies("1@chip")
def test_results(xla_target: Target, subtests: pytest.Subtests) -> None:
    """Results that are alike are one of the program, and none is none."""
    ((artifact, which, first, named, code),) = run_ranks(_export_step, xla_target.topology)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight, table = np.array([[2], [3]], np.float32), np.array([1, 2, 4], np.float32)
    arguments = (weight, np.ones(3, np.float32), table, x, x + 7)
    program = parse(artifact)
    product = x * table + weight * 5
    outputs = [x[0] + 1, product, None, product, product.T, x + 7, product[1]]
    with subtests.test("results"):
        (results,) = execute(program, [arguments])
        assert len(results) == 5
        assert first == [0, 1, 4, 5, 6]
        for output, number in zip(outputs, which, strict=True):
            if output is None:
                assert number is None
            else:
                assert number is not None
                np.testing.assert_array_equal(results[number], output)
    with subtests.test("places in the source"):
        assert named == [True, False]
    with subtests.test("bytecode"):
        assert parse(bytes.fromhex(code)).text == program.text


def _export_random(_: int) -> tuple[bytes, bool]:
    from torch_tpu._internal.export import exported_to_mlir

    device = BACKENDS["torch_tpu"].join()
    exported = torch.export.export(_Random(), (torch.ones(4, 64, device=device),))
    made = exported_to_mlir(exported)
    return made.serialize_portable_artifact(), made.updates_default_generator_state


@pytest.mark.topologies("1@chip")
def test_random_numbers(xla_target: Target) -> None:
    """A program of random numbers takes the generator's state last, and returns the next one."""
    ((artifact, updates),) = run_ranks(_export_random, xla_target.topology)
    assert updates
    program, x = parse(artifact), np.arange(1, 257, dtype=np.float32).reshape(4, 64)
    state, drawn = np.array([5, 7], np.uint64), []
    for _ in range(2):
        ((kept, numbers, after),) = execute(program, [(x, state)])
        for same, again in zip(
            execute(program, [(x, state)])[0], (kept, numbers, after), strict=True
        ):
            np.testing.assert_array_equal(same, again)
        np.testing.assert_allclose(kept[kept != 0], (x / 0.75)[kept != 0], rtol=1e-6)
        assert 140 < np.count_nonzero(kept) < 245
        assert (numbers >= 0).all()
        assert (numbers < 1).all()
        assert len(np.unique(numbers)) > 60
        assert (after != state).any()
        drawn.append(numbers)
        state = after
    assert (drawn[0] != drawn[1]).any()


class _Drawing(torch.nn.Module):
    """Adds numbers of a generator that is given."""

    def forward(self, x: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor]:
        return (x + torch.rand(8, 8, device=x.device, generator=generator),)


class _Nothing(torch.nn.Module):
    def forward(self, _: torch.Tensor) -> dict[str, Any]:
        return {"a": None, "b": (None, None)}


class _Numbered(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x * 2, 3


def _export_drawing(_: int) -> dict[str, tuple[bytes, bool]]:
    from torch_tpu._internal.export import fx_to_mlir

    device = BACKENDS["torch_tpu"].join()
    x = torch.zeros(8, 8, device=device)
    generators = {
        "default": torch.tpu.default_generators[0],
        "own": torch.Generator(device=device),
    }
    programs = {}
    for name, generator in generators.items():
        made = fx_to_mlir(torch.fx.symbolic_trace(_Drawing()), [x, generator])
        programs[name] = (
            made.serialize_portable_artifact(),
            made.updates_default_generator_state,
        )
    return programs


@pytest.mark.topologies("1@chip")
def test_given_generator(xla_target: Target, subtests: pytest.Subtests) -> None:
    """A program takes and returns the state of a generator once, also if that is the default."""
    (programs,) = run_ranks(_export_drawing, xla_target.topology)
    x, state = np.full((8, 8), 10, np.float32), np.array([5, 7], np.uint64)
    for name, (artifact, updates) in programs.items():
        with subtests.test(name):
            ((drawn, after),) = execute(parse(artifact), [(x, state)])
            assert not updates
            assert (drawn >= 10).all()
            assert (drawn <= 11).all()
            assert len(np.unique(drawn)) > 60
            assert (after != state).any()


def _export_without_results(_: int) -> tuple[Any, ...]:
    from torch_tpu._internal.export import exported_to_mlir

    device = BACKENDS["torch_tpu"].join()
    x = torch.ones(3, device=device)
    made = exported_to_mlir(torch.export.export(_Nothing(), (x,)))
    outputs = made.reconstruct_fx_outputs_fn([], [])
    with pytest.raises(TypeError) as refusal:
        exported_to_mlir(torch.export.export(_Numbered(), (x,)))
    values = made.dynamic_outputs, made.unique_output_indices, made.mlir_result_tensors
    return (
        made.is_noop,
        made.module,
        *values,
        outputs,
        made.updates_default_generator_state,
        str(refusal.value),
    )


@pytest.mark.topologies("1@chip")
def test_no_results(xla_target: Target) -> None:
    """Without a result there is no program, and what is no tensor is no result."""
    ((noop, module, *values, outputs, updates, refused),) = run_ranks(
        _export_without_results, xla_target.topology
    )
    assert (noop, module, updates) == (True, None, False)
    assert values == [[], [], []]
    assert outputs == (None, None, None)
    assert refused.endswith("but got 3")


class _Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor


def _export_number(_: int) -> bytes:
    from torch_tpu._internal.export import exported_to_mlir

    device = BACKENDS["torch_tpu"].join()
    exported = torch.export.export(_Scaled(), (torch.ones(3, device=device), 2.5))
    return bytes(exported_to_mlir(exported).serialize_portable_artifact())


@pytest.mark.topologies("1@chip")
def test_number(xla_target: Target) -> None:
    """A number that a model takes is a constant of the program, as it is in torch.export's."""
    (artifact,) = run_ranks(_export_number, xla_target.topology)
    x = np.arange(3, dtype=np.float32)
    ((result,),) = execute(parse(artifact), [(x,)])
    np.testing.assert_array_equal(result, x * np.float32(2.5))
