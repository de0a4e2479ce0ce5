"""The same statements in torch_xla's words: NumPy's values, and failures that can be reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxlib.mlir import ir
from support.commands import xla_harness
from support.paths import ROOT

from harness.fuzz import random_program
from harness.fuzz.draft import Draft, DraftValue, MeshShape
from harness.fuzz.random_operators import BINARY, CUMULATIVE, OPERATORS, REDUCTIONS, UNARY
from harness.fuzz.random_program import RandomProgram, draw_programs, random_programs
from harness.fuzz.subjects import RandomEnding, Subject
from harness.fuzz.torch_xla_text import TorchXlaText
from harness.reduce.stablehlo import mlir_context

# What torch has no counterpart of, or torch_xla refuses: pytorch/xla#8783.
NOT_IN_TORCH = {"branch", "dynamic_slice", "dynamic_update", "loop", "scan"}


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    subject = Subject("", "cpu", "4", "torch_xla")
    subject.start()
    yield subject
    subject.end()


@pytest.mark.long
def test_numpy_and_torch_xla_agree_on_each_operator(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is divided but by manual regions, so the partitioner can't be wrong."""
    divided = Draft.spec
    strategy = random_programs(4, has_gspmd=False, framework="torch_xla")
    wrong, features = [], set()
    for kind in sorted({*OPERATORS} - NOT_IN_TORCH):
        monkeypatch.setattr(random_program, "OPERATORS", {kind: OPERATORS[kind]})
        monkeypatch.setattr(random_program, "ALWAYS", ())
        monkeypatch.setattr(Draft, "spec", divided if kind == "per_device" else undivided)
        for program in draw_programs(strategy, 0, 100 if kind == "per_device" else 20)[:3]:
            features |= {feature.partition(".")[0] for feature in program.features}
            if (ending := subject.run(program)).kind != "right":
                wrong.append((ending, program.text))
    assert wrong == []
    assert features >= {*OPERATORS} - NOT_IN_TORCH


def undivided(draft: Draft, shape: tuple[int, ...], *, even: bool) -> tuple[tuple[str, ...], ...]:
    return ((),) * len(shape)


PADDED = """\
import numpy as np
import torch
import torch_xla.distributed.spmd as xs
GIVEN = [torch.tensor([-4.0, -3.0, -2.0, -1.0])]
EXPECTED = [np.array([0, -4, -3, -2, -1, 0, 0, 0], float)]
def program(a0):
    mesh = xs.Mesh([3, 2, 1, 0], (4,), ("x",))
    xs.mark_sharding(a0, mesh, ("x",))
    v1 = torch.nn.functional.pad(a0, (1, 3), value=0)
    xs.mark_sharding(v1, mesh, ("x",))
    return v1,
"""


SPOILING = PADDED.replace(
    "    mesh =",
    """\
    assert not hasattr(xs, "spoiled")
    xs.spoiled = True
    raise AttributeError("no tensor")
    mesh =""",
)


def test_a_wrong_program_has_its_stablehlo_and_the_next_one_is_right(subject: Subject) -> None:
    def run(text: str) -> RandomEnding:
        return subject.run(RandomProgram(text, frozenset({"pad"}), is_gspmd=False))

    assert run(PADDED).kind == "right"
    wrong = run(PADDED.replace("-1, 0, 0, 0]", "-1, 0, 0, 9]"))
    assert (wrong.kind, wrong.detail) == ("wrong", "result 0: [7] is 0.0, expected 9.0")
    assert "stablehlo.pad" in wrong.stablehlo
    assert "mhlo.num_partitions = 4" in wrong.stablehlo
    with mlir_context():
        assert ir.Module.parse(wrong.stablehlo).operation.verify()
    for _ in range(2):  # each in a new process
        assert run(SPOILING).signature == "not lowered: AttributeError: no tensor"
    assert run(PADDED.replace("return v1", "import os; os.abort()")).signature == "crash: SIGABRT"
    assert run(PADDED).kind == "right"


MAPPED = """\
jax.shard_map(lambda p: lax.psum(p, "y"), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x"),
check_vma=False)({0})"""
PART = "xs.enable_manual_sharding(a0 * 1, ('x', 'y'), mesh=mesh).global_tensor"
SUMMED = f"torch_xla._XLAC._xla_spmd_all_reduce('sum', {PART}, 1.0, [[3, 2], [1, 0]])"
END = "(4, 2), mesh=mesh).global_tensor"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("jnp.flip({0}, 1)", ["v1 = torch.flip(a0, [1])"]),
        ("lax.slice({0}, (1, 0), (4, 2), (2, 1))", ["v1 = a0[1:4:2, 0:2]"]),
        (
            "lax.pad({0}, np.array(1, {0}.dtype), [(1, 2, 0), (0, -1, 0)])",
            ["v1 = torch.nn.functional.pad(a0, (0, -1, 1, 2), value=1)"],
        ),
        ("lax.pad({0}, np.array(1, {0}.dtype), [(0, 0, 1), (0, 0, 0)])", []),
        ("lax.fori_loop(0, 3, lambda i, c: c, {0})", []),
        (
            "lax.with_sharding_constraint({0}, NamedSharding(mesh, P(('x', 'y'))))",
            ["v1 = a0 * 1", "xs.mark_sharding(v1, mesh, (('x', 'y'), None))"],
        ),
        (
            MAPPED,
            [f"v1 = xs.disable_manual_sharding({SUMMED}, ('x', None), {END}"],
        ),
    ],
    ids=["flip", "slice", "pad", "pad-between", "loop", "constraint", "manual-region"],
)
def test_a_statement_is_written_in_torch(text: str, lines: list[str]) -> None:
    """The groups of a collective have device ids, in the order of the mesh."""
    writer = TorchXlaText(MeshShape({"x": 2, "y": 2}, [3, 2, 1, 0]))
    value = DraftValue("a0", np.zeros((4, 2), np.float32))
    assert writer.lines("v1", text, [value], (4, 2)) == lines


def along_rows(
    numpy: Callable[[np.ndarray, int], np.ndarray],
) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: numpy(x, 1)


WORDS: Mapping[str, Callable[..., np.ndarray]] = {
    **UNARY,
    **BINARY,
    **{text.format(1): along_rows(numpy) for text, numpy in REDUCTIONS.items()},
    **{f"lax.{name}({{0}}, 1)": along_rows(numpy) for name, numpy in CUMULATIVE.items()},
}


@pytest.mark.parametrize("text", WORDS)
def test_a_word_means_in_torch_what_it_means_in_numpy(text: str) -> None:
    arrays = [np.array([[3, -2, 0, 5], [-1, -4, 7, 2]], np.float32), np.eye(2, 4, 1, np.float32)]
    expected = WORDS[text](*arrays[: 1 + ("{1}" in text)])
    values = [DraftValue(f"a{n}", array) for n, array in enumerate(arrays)]
    (line,) = TorchXlaText(MeshShape({"x": 1}, [0])).lines("v", text, values, expected.shape)
    names = {value.name: torch.from_numpy(value.array) for value in values}
    result = eval(line.removeprefix("v = "), {"torch": torch, **names})
    np.testing.assert_array_equal(result, expected)


def test_stacks_say_whose_programs_are_drawn(tmp_path: Path) -> None:
    done = xla_harness("fuzz", "--stacks", "2.9.0", "--write", 3, "--out", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in tmp_path.glob("test_*.py")]
    assert len(texts) == 3
    assert all("import torch_xla" in text for text in texts)
