"""How far LLVM optimizes what the virtual TPU compiles, as XLA itself writes it down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

JAX = "import jax; jax.jit(lambda x: x + 1)(2.0)"
OF_JAX = """
import jax
jax.jit(lambda x: x + 1, compiler_options={"xla_backend_optimization_level": 2})(2.0)
"""
TORCH_XLA = "import torch, torch_xla; (torch.ones(2).to('xla') + 1).cpu()"


@pytest.mark.parametrize(
    ("code", "flags", "level"),
    [
        (JAX, "", "0"),
        (TORCH_XLA, "", "0"),
        (JAX, "--xla_backend_optimization_level=1", "1"),
        (TORCH_XLA, "--xla_backend_optimization_level=1", "1"),
        (OF_JAX, "", "2"),
    ],
    ids=["jax", "torch_xla", "jax-flag", "torch_xla-flag", "jax-option"],
)
def test_level(tmp_path: Path, code: str, flags: str, level: str) -> None:
    line = [sys.executable, "-m", "harness", "run", "--topology=1x1", "--", sys.executable]
    environment = os.environ | {"XLA_FLAGS": f"--xla_dump_to={tmp_path} {flags}"}
    subprocess.run([*line, "-c", code], env=environment, capture_output=True, check=True)
    written = [file.read_text() for file in tmp_path.glob("*.debug_options")]
    wanted = f"xla_backend_optimization_level: {level}\n"
    assert written
    assert all(wanted in options for options in written)
