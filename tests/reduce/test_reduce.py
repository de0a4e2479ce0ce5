"""A program that fails becomes a small one that fails so, and a script for an upstream issue."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT
from support.programs import ENDLESS, LATE, REFUSED, RIGHT, UNKNOWN

from harness.reduce.shrinking import STEPS, fold_constants
from harness.reduce.stablehlo import bare, count, devices, valid, whole

ENDINGS = """
import json, sys
from harness.reduce.trial import endings
texts = json.load(sys.stdin)
for one in (texts, texts[:1]):
    print(json.dumps([(e.kind, e.text, e.seed, e.signature) for e in endings(one, limit=6)]))
"""
TESTS = '''
import jax, jax.numpy as jnp, numpy as np, pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.topologies("4")]

def test_refused():
    """What XLA refuses to compile: https://github.com/jax-ml/jax/issues/39301."""
    x = np.arange(4, dtype=np.float32)
    def cut(value, before, after):
        return lax.pad(value, np.float32(0), [(-before, -after, 0)])
    def both(value):
        right = lax.concatenate([cut(value, 3, 0), cut(value, 0, 1)], 0)
        return right + lax.concatenate([cut(value, 1, 0), cut(value, 0, 3)], 0)
    along = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    jax.jit(both)(jax.device_put(x, along))

def test_right(): jax.jit(lambda x: x + 1)(np.zeros(4))

def test_wrong_test(): assert jax.jit(lambda x: x + 1)(np.float32(1)) == 3

def test_two():
    """Its numbers are wrong, and that another of its programs is refused is not why."""
    try:
        test_refused()
    except Exception:
        pass
    test_wrong_test()

def test_early(): raise ValueError("too early")
'''


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.mlir").write_text(text)


def reduced(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return xla_harness("reduce", *words, cwd=folder)


def test_the_interpreter_computes_what_jax_does() -> None:
    done = run_program(sys.executable, Path(__file__).with_name("programs_of_jax.py"), cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_endings() -> None:
    padded = UPDATE.replace("tensor<8x", "tensor<5x")
    texts = [LATE, REFUSED, ENDLESS, RIGHT, UNKNOWN, "module {", UPDATE, padded, REPLICAS]
    done = run_program(sys.executable, "-c", ENDINGS, input=json.dumps(texts), cwd=ROOT)
    first, second = map(json.loads, done.stdout.splitlines())
    assert [kind for kind, *_ in first] == [
        *("wrong", "refused", "hang", "right", "refused", "invalid", "wrong", "wrong", "right"),
    ]
    assert not first[6][1].endswith("padded argument")
    assert first[7][1].endswith(", of a padded argument")
    assert first[6][3] != first[7][3]
    assert first[0] == second[0], "the arguments are the same each time"
    assert re.match(r"result 0: \[\d\] is \S+, expected \S+$", first[0][1])
    assert "Expected instruction to have shape" in first[1][1]
    assert "of_nobody" in first[4][1]


def test_replicas_have_values_of_their_own() -> None:
    done = run_program(sys.executable, "-c", VALUES, input=REPLICAS, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_counted_and_inlined() -> None:
    assert count(REFUSED) == 9
    assert count(bare(REFUSED)) == 8
    assert "call @cut" not in bare(REFUSED)
    assert devices(REFUSED) == 4
    assert devices(whole(REFUSED)) == 1
    assert "sdy" not in whole(REFUSED)
    assert whole(LATE) == "", "a manual computation says nothing of whole arrays"


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_each_step_makes_another_program(step: object) -> None:
    """Of one of these programs at least, and without an error of any."""
    texts = [bare(text) for text in (LATE, REFUSED, ENDLESS, TABLE, WIDE)]
    candidates = {c for text in texts for c in step(text) if c}  # type: ignore[operator]
    assert any(map(valid, candidates - set(texts))), len(candidates)


# One of two equal sums over devices, and an argument, are not needed.
WIDE = """
module @jit_wide attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<4xf32>, %y: tensor<2xf32>) -> tensor<4xf32> {
    %0:2 = sdy.manual_computation(%x, %y)
        in_shardings=[<@mesh, [{"x"}]>, <@mesh, [{}], replicated={"x"}>]
        out_shardings=[<@mesh, [{}], replicated={"x"}>, <@mesh, [{"x"}]>] manual_axes={"x"}
        (%a: tensor<2xf32>, %b: tensor<2xf32>) {
      %1 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          use_global_device_ids}> ({
      ^bb0(%c: tensor<f32>, %d: tensor<f32>):
        %2 = stablehlo.add %c, %d : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      %3 = stablehlo.negate %a : tensor<2xf32>
      sdy.return %1, %3 : tensor<2xf32>, tensor<2xf32>
    } : (tensor<4xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<4xf32>)
    return %0#1 : tensor<4xf32>
  }
}
"""
TRIMMED = """
import sys
from harness.reduce.shrinking import drop_unused, trim_computations
from harness.reduce.trial import endings
(trimmed,) = trim_computations(sys.stdin.read())
(program,) = filter(None, drop_unused(trimmed))
assert "all_reduce" in trimmed and "all_reduce" not in program, program
assert "(tensor<4xf32>) -> tensor<4xf32>" in program, program
assert [ending.kind for ending in endings([trimmed, program])] == ["right"] * 2
"""


def test_what_a_computation_does_not_need() -> None:
    done = run_program(sys.executable, "-c", TRIMMED, input=WIDE, cwd=ROOT)
    assert done.returncode == 0, done.stderr


TABLE = """
module @jit_table attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xbf16>, %unused: tensor<2xf32>)
      -> (tensor<4xbf16>, tensor<4xbf16>) {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %two = stablehlo.add %one, %one : tensor<i32>
    %0 = stablehlo.dynamic_slice %x, %two, sizes = [4]
        : (tensor<4xbf16>, tensor<i32>) -> tensor<4xbf16>
    %1 = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xbf16>
    %2 = stablehlo.add %0, %1 : tensor<4xbf16>
    return %0, %2 : tensor<4xbf16>, tensor<4xbf16>
  }
}
"""


@pytest.mark.measures_coverage
@pytest.mark.parametrize(
    ("text", "most", "summary", "error"),
    [
        (LATE, 3, r"wrong after pass algsimp\nnot so with \S+=algsimp", "Mismatched elements"),
        (UNKNOWN, 1, "of_nobody", "of_nobody"),
    ],
    ids=["wrong", "unknown"],
)
def test_a_file(tmp_path: Path, text: str, most: int, summary: str, error: str) -> None:
    write(tmp_path, it=text)
    done = reduced(tmp_path, "it.mlir", "--out", "small.py")
    assert done.returncode == 0, done.stderr
    assert re.search(summary, done.stdout)
    small = tmp_path.joinpath("small.mlir").read_text()
    assert 1 <= count(small) <= most
    assert f"{count(bare(text))} instructions -> {count(small)}" in done.stdout
    script = run_program(sys.executable, "small.py", cwd=tmp_path)
    assert script.returncode == 1
    assert error in script.stderr


@pytest.mark.long
def test_a_report(tmp_path: Path) -> None:
    """It names the case that failed, and where."""
    (tmp_path / "test_it.py").write_text(TESTS)
    pytest_run = (sys.executable, "-m", "pytest", "-n0", "--junitxml=report.xml", "test_it.py")
    run_program(*pytest_run, cwd=tmp_path)
    done = reduced(tmp_path, "report.xml")
    assert done.returncode == 2
    assert "report.xml: expected one failed case, it has 4" in done.stderr
    assert "\n  report.xml::test_it.py::test_early[cpu-4]" in done.stderr
    done = reduced(tmp_path, "report.xml::test_refused")
    assert done.returncode == 0, done.stderr
    assert "7 instructions -> 5" in done.stdout


def test_a_case(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    done = reduced(tmp_path, "test_it.py::test_refused[cpu-4]")
    assert done.returncode == 0, done.stderr
    assert "7 instructions -> 5" in done.stdout
    assert re.search(r"refused .*Expected instruction to have shape", done.stdout)
    script = tmp_path / "reports/reduced.py"
    assert "From:        test_it.py::test_refused[cpu-4]" in script.read_text()
    ran = run_program(sys.executable, script, cwd=tmp_path)
    assert ran.returncode == 1
    assert "Expected instruction" in ran.stderr


# XLA reads the file of its flags when it starts: each process that runs the program.
FLAKY = """
import sys, threading, time
def write():
    for flags in ["", "--xla_disable_hlo_passes=algsimp"] * 99:
        with open(sys.argv[1], "w") as pipe:
            pipe.write(flags)
        time.sleep(0.2)
threading.Thread(target=write).start()
"""


REFUSALS = {
    "test_it.py::test_right[cpu-4]": "nothing to reduce: passed",
    "test_it.py::test_early[cpu-4]": "it failed before it compiled one",
    "test_it.py::test_wrong_test[cpu-4]": "XLA computes what the operations say",
    "test_it.py::test_two[cpu-4]": "none of its 3 programs fails alone as the case does",
    "test_it.py::test_right[cpu-4] --lane virtual-tpo": "'virtual-tpo': did you mean virtual-tpu",
    "test_it.py::test_rihgt": "test_it.py::test_rihgt: expected a test that runs",
    "right.mlir --has [": "--has '[': expected an expression",
    "gone.mlir": "gone.mlir: expected a program, there is no such file",
    "right.mlir": "right.mlir: nothing to reduce: XLA computes what the operations say",
    "text.hlo": "text.hlo: expected StableHLO (.mlir), HLO text",
    "right.mlir --budget soon": "--budget 'soon': expected seconds",
    "right.mlir --out gone/x.py": "--out: 'gone/x.py': expected a file in a folder",
}


# Each of two replicas has an argument of its own, so the sum over both differs from twice it.
REPLICAS = """
module @pmap_total attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %2 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""
VALUES = """
import sys
import numpy as np
from harness.reduce.compiled import Executed
program = Executed(sys.stdin.read(), 2, {})
(values,) = given = program.arguments(1)
assert values.shape == (2, 3) and (values[0] != values[1]).any()
(result,) = program.results(given)
assert (result == values.sum(0)).all(), (values, result)
"""
# What only a padded argument shows is another failure, as no program of JAX has one.
UPDATE = """
module @jit_update attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"},
      %at: tensor<i32>) -> (tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4]}"}) {
    %0 = stablehlo.slice %x [0:1] : (tensor<8xf32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %x, %0, %at
        : (tensor<8xf32>, tensor<1xf32>, tensor<i32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}
"""


SLOW = ("test_it.py::test_right[cpu-4]", "test_it.py::test_early[cpu-4]")


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, marks=[pytest.mark.long] if w in SLOW else []) for w in REFUSALS],
)
def test_nothing_to_reduce(tmp_path: Path, words: str) -> None:
    write(tmp_path, right=RIGHT)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "text.hlo").write_text("HloModule")
    done = reduced(tmp_path, *words.split(" "))
    assert done.returncode == 2, done.stderr
    assert REFUSALS[words] in " ".join(done.stderr.split())
    assert not list(tmp_path.rglob("reduced*"))


def test_the_budget_ends(tmp_path: Path) -> None:
    write(tmp_path, it=UNKNOWN)
    done = reduced(tmp_path, "it.mlir", "--budget", "1s", "--out", "small.py")
    assert done.returncode == 3, done.stderr
    assert "to go on: xla-harness reduce small.mlir --out small.py" in done.stderr
    assert "of_nobody" in tmp_path.joinpath("small.mlir").read_text()


def test_ctrl_c_keeps_the_best_program(tmp_path: Path) -> None:
    write(tmp_path, it=LATE)
    words = (sys.executable, "-m", "harness", "reduce", "it.mlir", "--out", "small.py")
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "5 instructions" in line:
                process.send_signal(signal.SIGINT)
                break
        errors = process.stderr.read()
    assert process.returncode == 3, errors
    assert "to go on: xla-harness reduce small.mlir" in errors
    assert 3 <= count(tmp_path.joinpath("small.mlir").read_text()) <= 5


def test_a_flaky_program(tmp_path: Path) -> None:
    write(tmp_path, it=LATE)
    pipe = tmp_path / "flags"
    os.mkfifo(pipe)
    with subprocess.Popen((sys.executable, "-c", FLAKY, pipe)) as writer:
        own = {**os.environ, "XLA_FLAGS": str(pipe)}
        done = xla_harness("reduce", "it.mlir", cwd=tmp_path, env=own)
        writer.kill()
    assert done.returncode == 2, done.stderr
    assert "it is flaky: first wrong, then right" in done.stderr


def test_a_full_disk(tmp_path: Path) -> None:
    """The best program is on standard output then."""
    write(tmp_path, it=UNKNOWN)
    (tmp_path / "small.mlir").symlink_to("/dev/full")
    done = reduced(tmp_path, "it.mlir", "--out", "small.py")
    assert done.returncode == 2, done.stderr
    assert "small.mlir: can't be written: No space left on device" in done.stderr
    assert count(done.stdout) == 1


def test_the_second_note_of_a_mesh_is_dropped() -> None:
    """JAX 0.12 writes it; a mesh of other axes would contradict it."""
    mesh = 'sdy.mesh @mesh = <["x"=4]>'
    note = '{stablehlo.mesh = {axes = [{name = "x", size = 4 : i64}]}}'
    main = "func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32>"
    body = f"{main} {{\nreturn %arg0 : tensor<4xf32>\n}}"
    assert note[1:16] not in bare(f"module {{\n{mesh} {note}\n{body}\n}}")
    assert mesh in bare(f"module {{\n{mesh} {note}\n{body}\n}}")


# XLA makes one slice of the two and moves its start only then; it is too late if %k is 59, which is
# what the 15th seed draws and none of the first eight.
UNUSUAL = """
module @jit_unusual attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%k: tensor<i32>, %b: tensor<i32>, %x: tensor<4xf32>) -> tensor<1xf32> {
    %unusual = stablehlo.constant dense<59> : tensor<i32>
    %late = stablehlo.constant dense<9> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %is = stablehlo.compare EQ, %k, %unusual : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %start = stablehlo.select %is, %late, %zero : tensor<i1>, tensor<i32>
    %0 = stablehlo.dynamic_slice %x, %start, sizes = [2]
        : (tensor<4xf32>, tensor<i32>) -> tensor<2xf32>
    %second = stablehlo.minimum %b, %zero : tensor<i32>
    %1 = stablehlo.dynamic_slice %0, %second, sizes = [1]
        : (tensor<2xf32>, tensor<i32>) -> tensor<1xf32>
    return %1 : tensor<1xf32>
  }
}
"""


def test_unusual_arguments_are_tried_too(tmp_path: Path) -> None:
    write(tmp_path, unusual=UNUSUAL)
    done = reduced(tmp_path, "unusual.mlir", "--budget", "1s")
    assert done.returncode == 3, done.stderr
    assert "\nwrong  " in done.stdout


def test_truth_values_are_folded() -> None:
    text = """
    module @jit_folded attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
      func.func public @main(%x: tensor<2xi1>) -> (tensor<i1>, tensor<2xi1>) {
        %number = stablehlo.constant dense<3> : tensor<i32>
        %other = stablehlo.constant dense<4> : tensor<i32>
        %0 = stablehlo.compare EQ, %number, %other : (tensor<i32>, tensor<i32>) -> tensor<i1>
        return %0, %x : tensor<i1>, tensor<2xi1>
      }
    }"""
    (folded,) = filter(None, fold_constants(text))
    assert "dense<false>" in folded
