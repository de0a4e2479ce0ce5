"""What is imported before it is needed: nothing that takes longer than all else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.commands import run_program
from support.paths import ROOT

from harness import cli

HEAVY = {"duckdb", "google.protobuf", "jinja2", "libcst", "numpy", "pyarrow", "pydantic", "torch"}
# Makes the options of one command after the other, and says what each was the first to import.
COMMANDS = """\
import json, sys
from harness import cli
before, first = set(), {}
for name in ("--help", *cli._modules()):
    cli._parser(name)
    first[name] = sorted(sys.modules.keys() - before)
    before = set(sys.modules)
print(json.dumps(first))
"""
# A test of a project without stacks, expectations and lanes.
TEST = """\
import sys
def test_modules(request):
    assert request.config.pluginmanager.hasplugin("xla-harness")
    print(*sys.modules)
"""


@cache
def imported() -> dict[str, set[str]]:
    """The modules by the command that was the first to import them."""
    line = [sys.executable, "-c", COMMANDS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, check=True)
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


@pytest.mark.parametrize("command", ["--help", *cli._modules()])
def test_options_of_a_command_need_no_heavy_library(command: str) -> None:
    assert not imported()[command] & HEAVY


def test_a_command_imports_no_other_one() -> None:
    of_commands = {f"harness.{module}" for module in cli._modules().values()}
    first, *_ = cli._modules()
    assert not imported()["--help"] & of_commands
    assert imported()[first] & of_commands == {f"harness.commands.{first}"}


def test_a_plain_test_needs_no_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(TEST)
    line = [sys.executable, "-m", "pytest", "-s", "-p", "no:cov", "-p", "no:hypothesispytest"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_program(*line, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout
    assert not set(done.stdout.split()) & HEAVY
