"""A feature is a leaf: without its folder and its entry in the registry, everything else works."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_program
from support.paths import ROOT

LEAVES = ("reduce", "repro", "sensitivity", "jobset", "dashboard", "issues", "survive")
REGISTRY = Path("commands", "all_commands.py")
# Parses the options of every command, which imports the modules of all commands.
HELP = "import sys; from harness import cli; cli._parser(); sys.exit(cli.main(['--help']))"
CASE = """\
import pytest
@pytest.mark.lanes("cpu")
@pytest.mark.topologies("2")
def test_case(topology): assert topology.slices == 1
"""


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside functions, and names from packages."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {str(node.module), *(f"{node.module}.{a.name}" for a in node.names)}
    return modules


def without(leaf: str, folder: Path) -> Path:
    """Copy ``harness/`` without the feature's folder and without its entry in the registry."""
    ignored = shutil.ignore_patterns("__pycache__", "plugin")
    copy = shutil.copytree(ROOT / "harness", folder / "harness", ignore=ignored)
    shutil.rmtree(copy / leaf)
    text = (copy / REGISTRY).read_text()
    text, count = re.subn(rf'^    "{leaf}": Command\([^)]*\),\n', "", text, flags=re.MULTILINE)
    assert count == 1
    (copy / REGISTRY).write_text(text)
    return copy


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy in ``folder`` in the place of the installed package."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return run_program(sys.executable, *arguments, cwd=folder, env=environment)


@pytest.mark.parametrize("leaf", LEAVES)
def test_nothing_imports_it(leaf: str) -> None:
    package = f"harness.{leaf}"
    others = [p for p in (ROOT / "harness").rglob("*.py") if leaf not in p.relative_to(ROOT).parts]
    users = [
        str(path.relative_to(ROOT))
        for path in others
        if any(f"{name}.".startswith(f"{package}.") for name in imports(path))
    ]
    assert others
    assert users == []


@pytest.mark.long
@pytest.mark.parametrize("leaf", LEAVES)
def test_everything_else_works_without_it(leaf: str, tmp_path: Path) -> None:
    copy = without(leaf, tmp_path)
    (tmp_path / "test_plain.py").write_text(CASE)
    shown = python(tmp_path, "-c", HELP)
    assert shown.returncode == 0, shown.stderr
    assert leaf not in re.findall(r"^    ([\w-]+)", shown.stdout, re.MULTILINE)
    done = python(tmp_path, "-m", "pytest", "-q", "-n", "0", "-o", "xla_preload=")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    where = python(tmp_path, "-c", "import harness; print(harness.__path__)").stdout
    assert str(copy) in where
