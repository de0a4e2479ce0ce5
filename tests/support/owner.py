"""Somebody with a project, an environment for it, and an index of wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commands import run_program, xla_harness
from support.drift import GOOD

from harness.stacks import uv

OLD = GOOD + "__version__ = '1'\nKINDS = ['a', 'b']\nold = 1\n"
NEW = (
    GOOD.replace("2 * n", "n * n").replace("SECONDS = 0", "SECONDS = 1.2")
    + "__version__ = '2'\nKINDS = ['a']\n"
)
FILES = ("--json", "answer.json", "--markdown", "answer.md", "--badge", "badge.json")


@dataclass(frozen=True)
class Owner:
    """Somebody with a project, an environment for it, and an index of wheels."""

    folder: Path
    python: Path

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(textwrap.dedent(text))

    def survive(
        self, *words: str, python: Path | None = None, within: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the command in the project, ``within`` another command of the harness."""
        marks = self.folder.parent / "marks"  # which the tests change, so no part of the project
        marks.mkdir(exist_ok=True)
        command = (*within, "survive", *words[:1], "--python", python or self.python)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "XLA_"))}
        return xla_harness(
            *command, *FILES, *words[1:],
            cwd=self.folder, env=clean | self.variables | {"MARKS": str(marks)},
        )  # fmt: skip

    @property
    def variables(self) -> dict[str, str]:
        shared = self.python.parents[2]
        return {
            "XLA_HARNESS_CACHE": str(shared / "cache"),
            "UV_FIND_LINKS": str(shared / "wheels"),
            "UV_COMPILE_BYTECODE": "0",
        }

    @property
    def answer(self) -> Any:
        return json.loads((self.folder / "answer.json").read_text())

    @property
    def badge(self) -> tuple[str, str, str]:
        data = json.loads((self.folder / "badge.json").read_text())
        assert data.pop("schemaVersion") == 1
        assert sorted(data) == ["color", "label", "message"]  # shields.io refuses unknown keys
        return data["label"], data["message"], data["color"]

    @property
    def verdicts(self) -> dict[str, str]:
        return {each["test"]: each["verdict"] for each in self.answer["tests"]}


def environment(folder: Path, *packages: str) -> Path:
    python = folder / f"env-{len(packages)}" / "bin" / "python"
    run_program(uv.executable(), "venv", "--python", sys.executable, python.parents[1], check=True)
    command = ("pip", "install", "--find-links", folder / "wheels", "--python", python, *packages)
    run_program(uv.executable(), *command, check=True)
    return python
