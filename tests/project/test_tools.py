"""Spelling and the format of C code: the project is clean, and a planted fault is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

BIN = Path(sys.executable).parent


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_project_has_no_known_misspelling(tmp_path: Path) -> None:
    done = run(BIN / "codespell")
    assert (done.returncode, done.stdout) == (0, "")
    planted = tmp_path / "page.md"
    planted.write_text("Errors are rec" + "ieved.\n")
    assert "==> received" in run(BIN / "codespell", planted).stdout


def test_all_c_code_has_one_format(tmp_path: Path) -> None:
    assert run(".ci/format-c").returncode == 0
    for name in (".ci/format-c", ".clang-format", "plugin.c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("int  f( void ){return 0;}\n")
    for name in (".ci/format-c", ".clang-format"):
        shutil.copy(ROOT / name, tmp_path / name)
    for arguments in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    done = run(tmp_path / ".ci/format-c")
    assert done.returncode != 0
    assert "plugin.c:1:" in done.stderr
