"""The same statements on DTensors: NumPy's values, and failures of one rank and of all."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT

from harness.fuzz import random_program
from harness.fuzz.draft import Draft, DraftValue, MeshShape
from harness.fuzz.dtensor_text import DTensorText
from harness.fuzz.random_operators import OPERATORS
from harness.fuzz.random_program import RandomProgram, draw_programs, random_programs
from harness.fuzz.subjects import RandomEnding, Subject

# What torch has no counterpart of, and what DTensor of torch 2.9 has no rule for.
NOT_IN_TORCH = {"branch", "dynamic_slice", "dynamic_update", "loop", "scan"}
NO_RULE = {"flip", "roll", "scatter", "window"}


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    subject = Subject("", "cpu", "4", "torch")
    subject.start()
    yield subject
    subject.end()


def undivided(draft: Draft, shape: tuple[int, ...], *, even: bool) -> tuple[tuple[str, ...], ...]:
    return ((),) * len(shape)


@pytest.mark.long
def test_numpy_and_dtensor_agree_on_each_operator(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is divided but for the mapped functions, so DTensor's rules can't be wrong."""
    divided = Draft.spec
    strategy = random_programs(4, has_gspmd=False, framework="torch")
    wrong, features = [], set()
    for kind in sorted({*OPERATORS} - NOT_IN_TORCH):
        monkeypatch.setattr(random_program, "OPERATORS", {kind: OPERATORS[kind]})
        monkeypatch.setattr(random_program, "ALWAYS", ())
        monkeypatch.setattr(Draft, "spec", divided if kind == "per_device" else undivided)
        for program in draw_programs(strategy, 0, 200 if kind == "per_device" else 20)[:2]:
            ending = subject.run(program)
            if ending.kind == "right":
                features |= {feature.partition(".")[0] for feature in program.features}
            elif ending.is_failure:
                wrong.append((ending, program.text))
    assert wrong == []
    assert features >= {*OPERATORS} - NOT_IN_TORCH - NO_RULE


MOVED = """\
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import numpy as np
DEVICE = "cpu"
EXPECTED = [np.array([-8, -6, -4, -2], float)]
def program():
    mesh = DeviceMesh(DEVICE, torch.arange(4), mesh_dim_names=("x",))
    a0 = distribute_tensor(torch.tensor([-4.0, -3.0, -2.0, -1.0]), mesh, [Shard(0)])
    v1 = a0 + a0
    return [v1.full_tensor()]
"""
RAISING = MOVED.replace(
    "    v1 =", "    if mesh.get_rank() == 2:\n        raise ValueError('alone')\n    v1 ="
)
REFUSED = MOVED.replace("    v1 =", "    raise NotImplementedError('no rule')\n    v1 =")
ABORTING = RAISING.replace("raise ValueError('alone')", "__import__('os').abort()")
WAITING = RAISING.replace("raise ValueError('alone')", "__import__('time').sleep(1000)")


def run(subject: Subject, text: str) -> RandomEnding:
    return subject.run(RandomProgram(text, frozenset({"binary"}), is_gspmd=False))


def test_a_failure_of_one_rank_is_that_of_the_program(subject: Subject) -> None:
    """The other ranks wait for it in a collective, and the next program has another job."""
    assert run(subject, MOVED).kind == "right"
    wrong = run(subject, MOVED.replace("-8, -6", "-8, -5"))
    assert (wrong.kind, wrong.detail) == ("wrong", "result 0: [1] is -6.0, expected -5.0")
    start = time.monotonic()
    assert run(subject, RAISING).signature == "failed: ValueError: alone"
    assert time.monotonic() - start < 15  # not the time after which a program hangs
    assert run(subject, MOVED).kind == "right"
    assert run(subject, REFUSED).kind == "unusable"
    assert run(subject, ABORTING).signature == "crash: SIGABRT"
    assert run(subject, MOVED).kind == "right"


@pytest.mark.long
def test_a_rank_that_never_ends_is_a_hang(subject: Subject) -> None:
    assert run(subject, WAITING).kind == "hang"
    assert run(subject, MOVED).kind == "right"


MAPPED = """\
jax.shard_map(lambda p: lax.psum_scatter(p, ("x", "y"), scatter_dimension=0, tiled=True), mesh=mesh,
in_specs=P(), out_specs=P(("x", "y")), check_vma=False)({0})"""
SCATTERED = 'funcol.reduce_scatter_tensor({}, "sum", 0, (mesh, {}))'
PARTS = SCATTERED.format(SCATTERED.format("p", 0), 1)
BOTH = "[Shard(0), Shard(0)]"
OPTIONS = "in_placements=([Replicate(), Replicate()],), device_mesh=mesh, redistribute_inputs=True"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "lax.with_sharding_constraint({0}, NamedSharding(mesh, P(None, 'x')))",
            ["v1 = a0.redistribute(placements=[Shard(1), Replicate()])"],
        ),
        (
            MAPPED,
            [f"v1 = local_map(lambda p: {PARTS}, {BOTH}, {OPTIONS})(a0)"],
        ),
        (MAPPED.replace('P(("x", "y"))', 'P(("y", "x"))'), []),
        ("lax.fori_loop(0, 3, lambda i, c: c, {0})", []),
    ],
    ids=["constraint", "mapped", "other-order", "loop"],
)
def test_a_statement_is_written_with_placements(text: str, lines: list[str]) -> None:
    writer = DTensorText(MeshShape({"x": 2, "y": 2}, [0, 1, 2, 3]), "torch", "cpu")
    value = DraftValue("a0", np.zeros((8, 2), np.float32))
    assert writer.lines("v1", text, [value], (8, 2)) == lines


@pytest.mark.long
def test_what_is_written_runs_under_any_pytest(tmp_path: Path) -> None:
    """It starts the ranks itself, and fails if a number is another one."""
    done = xla_harness("fuzz", "--framework", "torch", "--write", 1, "--out", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("test_*.py")
    pytest_alone = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xla_harness",
        path,
    )
    assert run_program(*pytest_alone, cwd=tmp_path).returncode == 0
    text = path.read_text()
    start, end = text.split("EXPECTED = [", 1)
    path.write_text(f"{start}EXPECTED = [\n    np.zeros((1, 2, 3)),{end}")
    failed = run_program(*pytest_alone, cwd=tmp_path)
    assert failed.returncode == 1
    assert "Not equal to tolerance" in failed.stdout


@pytest.mark.long
def test_a_search_tells_what_fails_and_writes_it(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--budget", "1m", "-n", "1", "--out", tmp_path, "--json", report]
    done = xla_harness("fuzz", "--framework", "torch", *options, cwd=ROOT)
    data = json.loads(report.read_text())
    assert done.returncode == int(bool(data["failures"])), done.stderr
    assert data["programs"] > 5
    for failure in data["failures"]:
        assert failure["endings"][0]["kind"] in ("failed", "wrong", "crash", "hang")
        assert (tmp_path / f"test_{failure['name']}.py").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--framework", "torch", "--lane", "virtual-tpu"], "programs of torch: expected lane cpu"),
        (["--framework", "torch_tpu"], "expected a lane of TPUs, as with --lane virtual-tpu"),
        (["--framework", "torch", "--topology", "8"], "--topology 8: expected 4 devices"),
    ],
)
def test_a_job_has_a_rank_for_each_device(arguments: list[str], message: str) -> None:
    done = xla_harness("fuzz", *arguments, cwd=ROOT)
    assert done.returncode == 2
    assert message in done.stderr
