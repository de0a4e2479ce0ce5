"""Random programs are right where XLA is; what is wrong is seen, reduced and written down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT

from harness.fuzz import random_program, searching
from harness.fuzz.random_operators import OPERATORS
from harness.fuzz.random_program import RandomProgram, draw_programs, random_programs
from harness.fuzz.reduced_causes import ReducedCause, known_issue, reduced
from harness.fuzz.searching import Explained, RandomFailure
from harness.fuzz.subjects import RandomEnding, Subject

PADDED = """\
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
GIVEN = [np.array([-4, -3, -2], np.float32)]
EXPECTED = [np.array([-4, -3, -2, 0], float)]
def program():
    mesh = Mesh(np.array(jax.devices()[:2]), "x")
    def computed(a0):
        v0 = lax.pad(a0, np.array(0, a0.dtype), [(0, 1, 0)])
        return (lax.with_sharding_constraint(v0, NamedSharding(mesh, P("x"))),)
    return jax.jit(computed, out_shardings=(NamedSharding(mesh, P()),))
"""
CRASH = PADDED.replace("return jax.jit", "import os; os.abort()\n    return jax.jit")
OTHERWISE = PADDED.replace("EXPECTED = [np.array([-4", "EXPECTED = [np.array([4")
# XLA makes one slice of the two, and moves its start only then into the array.
TWO_SLICES = """\
import jax, jax.numpy as jnp, numpy as np
from jax import lax
GIVEN = [np.arange(4.0, dtype=np.float32), np.array([9], np.int32), np.array([0], np.int32)]
EXPECTED = [np.array([2.0])]
def program():
    def computed(a0, a1, a2):
        return (lax.dynamic_slice(lax.dynamic_slice(a0, a1, (2,)), a2, (1,)),)
    return jax.jit(computed)
"""


def programs(
    devices: int, count: int, *, framework: str = "jax", without: Collection[str] = ()
) -> list[RandomProgram]:
    """Draw programs, the same each time."""
    strategy = random_programs(devices, has_gspmd=False, framework=framework, without=without)
    return draw_programs(strategy, 0, 20 * count)[:count]


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    subject = Subject("", "cpu", "8", is_measured=True)
    subject.start()
    yield subject
    subject.end()


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(OPERATORS))
def test_numpy_and_jax_agree_on_each_operator(
    subject: Subject, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is divided but by the mapped functions, so the partitioner can't be wrong."""
    few = {name: OPERATORS[name] for name in (kind, "binary")}
    monkeypatch.setattr(random_program, "OPERATORS", few)
    monkeypatch.setattr(random_program, "ALWAYS", ())
    # Of slices of slices XLA moves the start wrongly: jax-ml/jax#40849.
    drawn = [
        each
        for each in programs(4 if kind == "per_device" else 1, 6)
        if each.text.count("lax.dynamic_slice(") < 2
    ]
    features = {feature.partition(".")[0] for each in drawn for feature in each.features}
    assert features & {kind, "binary"}
    endings = [(subject.run(each), each.text) for each in drawn]
    assert [each for each in endings if each[0].kind != "right"] == []


def test_gradients_of_and_in_mapped_functions(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are right, but for weights that all devices share: jax-ml/jax#36886."""
    monkeypatch.setattr(random_program, "OPERATORS", {"per_device": OPERATORS["per_device"]})
    monkeypatch.setattr(random_program, "ALWAYS", ())
    monkeypatch.setattr(random_program, "_STATEMENTS", 2)
    drawn = [
        each
        for each in draw_programs(random_programs(4, has_gspmd=False), 0, 300)
        if "per_device.checked" in each.features and not each.is_explicit
    ]
    assert any("lambda q" in each.text for each in drawn)
    gradients = [each for each in drawn if "gradient" in each.features]
    weights = [each for each in drawn if "per_device.weights" in each.features]
    kinds = {subject.run(each).kind for each in weights[:6]}
    assert kinds <= {"right", "wrong"}
    assert "wrong" in kinds
    endings = [(subject.run(each), each) for each in (*gradients, *drawn[:20])]
    others = [(ending, each) for ending, each in endings if each not in weights]
    assert len(others) > 20
    assert [(ending, each.text) for ending, each in others if ending.kind != "right"] == []


def run(subject: Subject, text: str) -> RandomEnding:
    return subject.run(RandomProgram(text, frozenset({"pad"}), is_gspmd=False))


def test_a_wrong_program_and_a_crash_are_seen_and_the_next_one_is_right(subject: Subject) -> None:
    assert run(subject, PADDED).kind == "right"
    wrong = run(subject, OTHERWISE)
    assert (wrong.kind, wrong.detail) == ("wrong", "result 0: [0] is -4.0, expected 4.0")
    assert run(subject, CRASH).signature == "crash: SIGABRT"
    assert run(subject, PADDED).kind == "right"
    assert run(subject, PADDED.replace("lax.pad(", "lax.pod(")).kind == "not lowered"
    missing = PADDED.replace("return jax.jit", "raise NotImplementedError\n    return jax.jit")
    assert run(subject, missing).kind == "unusable"


@pytest.mark.long
def test_a_wrong_answer_of_xla_is_reduced_to_its_pass(subject: Subject) -> None:
    """A slice of a slice that begins too late: jax-ml/jax#40849, with jaxlib 0.7.1."""
    ending = run(subject, TWO_SLICES)
    assert ending.kind == "wrong", ending
    program = RandomProgram(TWO_SLICES, frozenset({"dynamic_slice.late"}), is_gspmd=False)
    failure = RandomFailure(program, [ending])
    cause = reduced(failure, [subject], "4m")
    assert (cause.kind, cause.brought_by) == ("wrong", "algsimp")
    assert cause.count <= 4
    assert "numpy" in cause.script
    assert known_issue(failure, cause) == "jax-ml/jax#40849"
    assert not known_issue(RandomFailure(program, [RandomEnding("crash", "SIGBUS")]), cause)


PAD = "%0 = stablehlo.pad %arg0, %cst, low = {}, high = {}, interior = {} : (tensor<4xf32>)"


@pytest.mark.parametrize(
    ("pad", "issue"),
    [
        (("[1]", "[-1]", "[0]"), "findings.md#padding-that-keeps-the-size-moves-nothing"),
        (("[0, -2]", "[0, 2]", "[0, 0]"), "findings.md#padding-that-keeps-the-size-moves-nothing"),
        (("[0]", "[1]", "[1]"), "findings.md#zeros-between-elements-are-lost"),
        (("[1]", "[1]", "[0]"), ""),
        (("[1, 0]", "[2, 0]", "[0, 0]"), ""),
        (("[0, -1]", "[0, 0]", "[0, 0]"), ""),
    ],
)
def test_a_wrong_pad_is_known_by_what_it_does(pad: tuple[str, str, str], issue: str) -> None:
    cause = ReducedCause("wrong", operations=["stablehlo.pad"], program=PAD.format(*pad))
    assert known_issue(failure("wrong"), cause) == issue


def failure(*kinds: str, features: str = "pad") -> RandomFailure:
    program = RandomProgram("", frozenset(features.split()), is_gspmd=False)
    return RandomFailure(program, [RandomEnding(kind) for kind in kinds])


def test_a_cause_explains_larger_programs_that_fail_alike() -> None:
    cause = Explained({"wrong"}, frozenset({"pad"}))
    assert cause.explains(failure("wrong", features="pad sort"))
    assert not cause.explains(failure("wrong", features="sort"))
    assert not cause.explains(failure("right", "wrong"))
    only_crash = Explained({"crash: SIGABRT"}, frozenset({"pad"}))
    crash = RandomProgram("", frozenset({"sort"}), is_gspmd=False)
    assert only_crash.explains(RandomFailure(crash, [RandomEnding("crash", "SIGABRT")]))


def test_more_bytes_than_on_the_base_are_a_failure(subject: Subject) -> None:
    measured = run(subject, PADDED)
    assert (measured.kind, measured.exchanged > 0) == ("right", True)
    less = RandomEnding("right", exchanged=measured.exchanged)
    more = RandomEnding("right", exchanged=measured.exchanged * 2 + 65)
    assert searching.compared(less, more).kind == "larger"
    assert searching.compared(more, less).kind == "right"
    assert searching.compared(less, less).kind == "right"


def fuzz(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return xla_harness("fuzz", *words, env={**os.environ, **environment}, cwd=ROOT)


def run_plainly(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run tests without the harness, on eight CPU devices."""
    return run_program(
        *(sys.executable, "-m", "pytest", "-p", "no:xla-harness", "-p", "no:cacheprovider", "-q"),
        *paths,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"},
    )


@pytest.mark.long
def test_a_wrong_compiler_is_noticed(tmp_path: Path) -> None:
    """The plugin subtracts in the place of adding; XLA for CPUs alone does not."""
    out, report = tmp_path / "out", tmp_path / "fuzz.json"
    done = fuzz(
        *("--lane", "virtual-tpu", "--budget", "20s", "-n", 1, "--out", out, "--json", report),
        XLA_HARNESS_PLANTER="support.without_sums",
        PYTHONPATH=str(ROOT / "tests"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    data: Mapping[str, list[dict[str, object]]] = json.loads(report.read_text())
    names = [str(each["name"]) for each in data["failures"]]
    assert names
    assert "not known here" in done.stdout
    again = run_plainly(*out.glob("test_*.py"))
    assert " passed" in again.stdout, again.stdout


@pytest.mark.long
def test_programs_are_written_as_tests(tmp_path: Path) -> None:
    """But for those that XLA gets wrong; JAX might refuse explicit axes."""
    done = fuzz("--write", 30, "--topology", 4, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    paths = sorted(tmp_path.glob("test_*.py"))
    assert len(paths) == 30
    texts = [path.read_text() for path in paths]
    assert not any("AxisType" in text for text in texts)
    devices = [re.findall(r"for n in (\[.*?\])", text)[0] for text in texts]
    assert {max(json.loads(each)) for each in devices} <= {0, 1, 2, 3}
    passed = sum("1 passed" in run_plainly(path).stdout for path in paths[:4])
    assert passed >= 3


@pytest.mark.long
def test_programs_are_drawn_without_an_operator() -> None:
    few = [program.features for program in programs(4, 30, without=["constraint", "binary"])]
    assert not {"constraint", "constraint.uneven", "binary"} & frozenset().union(*few)
    assert any("constraint" in program.features for program in programs(4, 30))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lane tpu-aot", "lane tpu-aot: expected one that runs programs"),
        ("--lane virtual-tqu", "virtual-tpu"),
        ("--stacks jax-0.12.0", "jax-0.12.0.1"),
        ("--budget soon", "expected seconds, minutes or hours"),
        ("--topology 3y", "3y"),
        ("--without pads", "pad"),
        ("--stacks 2.9.0 jax-0.12.0.1", "expected those of one framework"),
    ],
)
def test_bad_input_is_named(words: str, message: str, tmp_path: Path) -> None:
    done = fuzz(*words.split(), "--out", tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.py"))
