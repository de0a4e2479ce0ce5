"""What else than a wrong end is kept: an end that a base does not have, a size, a fact."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT
from support.programs import LATE, RIGHT, UNKNOWN

from harness.reduce.stablehlo import count

# An exchange whose result is not needed; XLA's simplifier sees that.
GATHER = """
module @jit_gather attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<8xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
      -> tensor<8xi32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>]
        out_shardings=[<@mesh, [{}]>] manual_axes={"x"} (%part: tensor<2xi32>) {
      %zero = stablehlo.constant dense<0> : tensor<8xi32>
      %1 = "stablehlo.all_gather"(%part) <{all_gather_dim = 0 : i64,
          channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
          replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}>
          : (tensor<2xi32>) -> tensor<8xi32>
      %2 = stablehlo.multiply %1, %zero : tensor<8xi32>
      sdy.return %2 : tensor<8xi32>
    } : (tensor<8xi32>) -> tensor<8xi32>
    %3 = stablehlo.add %0, %x : tensor<8xi32>
    %4 = stablehlo.negate %3 : tensor<8xi32>
    return %4 : tensor<8xi32>
  }
}
"""
WITHOUT = "--xla_disable_hlo_passes=algsimp"
COMPARED = """
import json, os, sys
from harness.reduce.base import Base, AgainstBase
from harness.reduce.trial import TrialTarget, endings
base = Base(sys.argv[1], os.environ, TrialTarget())
texts = json.load(sys.stdin)
print(json.dumps([(e.kind, e.text) for e in AgainstBase(endings, base)(texts)]))
"""


def base(folder: Path, flags: str) -> Path:
    """Return a Python of another environment: there XLA gets these flags."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nXLA_FLAGS={flags} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_only_what_does_not_fail_on_the_base(tmp_path: Path) -> None:
    words = (sys.executable, "-c", COMPARED, base(tmp_path, WITHOUT))
    texts = json.dumps([RIGHT, LATE, UNKNOWN])
    done = run_program(*words, input=texts, cwd=ROOT)
    right, wrong, refused = json.loads(done.stdout)
    assert right == ["right", ""]
    assert wrong[0] == "wrong"
    assert refused[0] == "invalid"
    assert refused[1].startswith("on the base it is refused, too: ")


def test_a_base_that_is_right(tmp_path: Path) -> None:
    (tmp_path / "it.mlir").write_text(LATE)
    words = ("--base", base(tmp_path, WITHOUT), "--out", "small.py")
    done = xla_harness("reduce", "it.mlir", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert count(tmp_path.joinpath("small.mlir").read_text()) <= 3
    issue = tmp_path.joinpath("small.md").read_text()
    assert "### Description" in issue
    assert "- Not with: jax " in issue
    assert "### System info" in issue
    assert tmp_path.joinpath("small.py").read_text() in issue


def test_a_base_that_fails_too(tmp_path: Path) -> None:
    (tmp_path / "it.mlir").write_text(LATE)
    done = xla_harness("reduce", "it.mlir", "--base", base(tmp_path, ""), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "it.mlir: nothing to reduce: invalid: on the base it is wrong, too" in done.stderr


@pytest.mark.long
def test_more_bytes_than_on_the_base(tmp_path: Path) -> None:
    (tmp_path / "it.mlir").write_text(GATHER)
    words = ("--base", base(tmp_path, ""), "--out", "small.py")
    own = {**os.environ, "XLA_FLAGS": WITHOUT}
    done = xla_harness("reduce", "it.mlir", *words, cwd=tmp_path, env=own)
    assert done.returncode == 0, done.stderr
    assert "larger    exchanges 32 bytes on each device, 0 on the base" in done.stdout
    assert count(tmp_path.joinpath("small.mlir").read_text()) <= 3
    script = run_program(sys.executable, "small.py", cwd=tmp_path)
    assert script.returncode == 1, script.stdout
    assert " all-gather(" in script.stdout
    assert "it exchanges 32 bytes" in script.stderr


@pytest.mark.long
def test_what_the_compiled_program_has(tmp_path: Path) -> None:
    (tmp_path / "it.mlir").write_text(LATE)
    words = ("--has", r" negate\(", "--out", "small.py")
    done = xla_harness("reduce", "it.mlir", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = tmp_path.joinpath("small.mlir").read_text()
    assert "stablehlo.negate" in text
    assert count(text) <= 4
    script = run_program(sys.executable, "small.py", cwd=tmp_path)
    assert script.returncode == 1
    assert "the compiled program has ' negate('" in script.stderr


def test_what_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "it.mlir").write_text(LATE)
    done = xla_harness("reduce", "it.mlir", "--has", "sine", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "it.mlir: nothing to reduce: It compiles, and nothing here" in done.stderr


@pytest.mark.long
@pytest.mark.measures_coverage
def test_what_only_a_vendor_refuses(tmp_path: Path) -> None:
    """Compiled by libtpu, without a TPU."""
    (tmp_path / "it.mlir").write_text(UNKNOWN)
    words = ("--lane", "tpu-aot", "--topology", "v5e:2x2", "--out", "small.py")
    done = xla_harness("reduce", "it.mlir", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "of_nobody" in done.stdout
    text = tmp_path.joinpath("small.py").read_text()
    assert "For:         v5e:2x2" in text
    script = run_program(sys.executable, "small.py", cwd=tmp_path)
    assert script.returncode == 1
    assert "of_nobody" in script.stderr


# Without XLA's simplifier the product stays, and without its fusion no instruction is one.
TWICE = """
module @jit_twice attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xi32>) -> tensor<4xi32> {
    %zero = stablehlo.constant dense<0> : tensor<4xi32>
    %0 = stablehlo.multiply %x, %zero : tensor<4xi32>
    %1 = stablehlo.negate %x : tensor<4xi32>
    %2 = stablehlo.maximum %1, %x : tensor<4xi32>
    %3 = stablehlo.add %0, %2 : tensor<4xi32>
    return %3 : tensor<4xi32>
  }
}
"""
TOGETHER = r"""
import sys
from functools import partial
from harness.reduce.deciding import DISABLE, deciding
from harness.reduce.trial import TrialTarget, endings
text = sys.stdin.read()
ask = partial(endings, target=TrialTarget(has=r"(?s)\A(?!.* multiply\()| fusion\("))
(flags,) = deciding(text, *ask([text]), ask).flags
print(sorted(flags[DISABLE].split(",")))
"""


@pytest.mark.long
def test_two_passes_that_decide_together() -> None:
    done = run_program(sys.executable, "-c", TOGETHER, input=TWICE, cwd=ROOT)
    assert done.stdout.strip() == "['algsimp', 'fusion']", done.stderr
