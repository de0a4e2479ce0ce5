"""``xla-harness sensitivity --stack``: faults in what another environment's packages compile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.paths import ROOT
from support.sensitivity import JAX_ALONE, sensitivity

STACKS = ROOT / "fixtures/stacks"
TESTS = """\
import sys

import jax
import jax.numpy as jnp
import numpy as np


def test_product():
    assert "/environments/2.9.0-" in sys.prefix
    x = np.linspace(0.1, 3.7, 12, dtype=np.float32).reshape(3, 4)
    found = jax.jit(lambda a, b: (a @ b) * 3)(x, jnp.asarray(x.T))
    np.testing.assert_allclose(found, x @ x.T * 3, rtol=1e-6)
"""


@pytest.mark.long
def test_cases_run_and_are_compared_there(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{JAX_ALONE[-1]}\nxla_stacks = {STACKS}\n")
    options = ("--stack", "2.9.0", "--lane=cpu", "--json=s.json", "-n1", "--budget=2m")
    ran = sensitivity(tmp_path, "test_user.py", *options, behind=["--topology=1"])
    assert ran.code == 0, ran.stderr
    report = json.loads((tmp_path / "s.json").read_text())
    assert not report["red"]
    verdicts = {fault["operator"]: fault["verdict"] for fault in report["faults"]}
    assert verdicts["constant-off"] == verdicts["narrowed"] == "seen"


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("torch_tpu-0.2.0-without-jax", "expected a stack with jax"),
        ("2.9", "2.9.0"),
    ],
)
def test_stacks_that_can_not_be_taken(tmp_path: Path, stack: str, message: str) -> None:
    (tmp_path / "test_user.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nxla_stacks = {STACKS}\n")
    ran = sensitivity(tmp_path, "test_user.py", "--stack", stack)
    assert ran.code == 2
    assert stack in ran.stderr
    assert message in ran.stderr
    assert not (tmp_path / "reports").exists()
