"""The options with which the virtual TPU compiles, as XLA itself writes them down."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NAME = "xla_backend_optimization_level"
QUICK = {
    NAME: "0",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
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


def options(folder: Path, code: str, *flags: str) -> dict[str, dict[str, str]]:
    """The options of each program that ``code`` compiles, by the name of XLA's file of them."""
    line = [sys.executable, "-m", "harness", "run", "--topology=1x1", "--", sys.executable]
    environment = os.environ | {"XLA_FLAGS": " ".join([f"--xla_dump_to={folder}", *flags])}
    subprocess.run([*line, "-c", code], env=environment, capture_output=True, check=True)
    files = {file.name: file.read_text() for file in folder.glob("*.debug_options")}
    return {name: dict(re.findall(r"(?m)^(\w+): (.*)$", text)) for name, text in files.items()}


def test_jax(tmp_path: Path) -> None:
    """Without optimization, unless an option of the program asks for it."""
    programs = options(tmp_path, JAX)
    assert {of[NAME] for name, of in programs.items() if "jit_chosen" in name} == {"2"}
    assert {of[NAME] for name, of in programs.items() if "jit_plain" in name} == {"0"}


@pytest.mark.long
def test_torch_xla(tmp_path: Path) -> None:
    programs = options(tmp_path, TORCH_XLA)
    assert programs
    assert all(of.items() >= QUICK.items() for of in programs.values())


@pytest.mark.long
def test_flag(tmp_path: Path) -> None:
    programs = options(tmp_path, TORCH_XLA, f"--{NAME}=1")
    assert programs
    assert all(of.items() >= (QUICK | {NAME: "1"}).items() for of in programs.values())
