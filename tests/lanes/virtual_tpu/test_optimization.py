"""How far LLVM optimizes what the virtual TPU compiles, as XLA itself writes it down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NAME = "xla_backend_optimization_level"
JAX = f"""
import jax

def plain(x):
    return x + 1

def chosen(x):
    return x + 2

jax.jit(plain)(2.0)
jax.jit(chosen, compiler_options={{"{NAME}": 2}})(2.0)
"""
TORCH_XLA = "import torch, torch_xla; (torch.ones(2).to('xla') + 1).cpu()"


def levels(folder: Path, code: str, *flags: str) -> dict[str, str]:
    """The level of each program that ``code`` compiles on the virtual TPU, by XLA's file of it."""
    line = [sys.executable, "-m", "harness", "run", "--topology=1x1", "--", sys.executable]
    environment = os.environ | {"XLA_FLAGS": " ".join([f"--xla_dump_to={folder}", *flags])}
    subprocess.run([*line, "-c", code], env=environment, capture_output=True, check=True)
    found = {}
    for file in folder.glob("*.debug_options"):
        lines = file.read_text().splitlines()
        found[file.name] = next(line for line in lines if line.startswith(NAME))
    return {name: line.removeprefix(f"{NAME}: ") for name, line in found.items()}


def test_jax(tmp_path: Path) -> None:
    """Without optimization, unless an option of the program asks for it."""
    found = levels(tmp_path, JAX)
    assert {level for name, level in found.items() if "jit_chosen" in name} == {"2"}
    assert {level for name, level in found.items() if "jit_plain" in name} == {"0"}


def test_torch_xla(tmp_path: Path) -> None:
    assert set(levels(tmp_path, TORCH_XLA).values()) == {"0"}


def test_flag(tmp_path: Path) -> None:
    assert set(levels(tmp_path, TORCH_XLA, f"--{NAME}=1").values()) == {"1"}
