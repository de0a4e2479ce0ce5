"""Commands that run to their end, in processes of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_program(
    *words: object, check: bool = False, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and keep its output as text; ``options`` are subprocess.run's."""
    command = tuple(map(str, words))
    return subprocess.run(
        command, capture_output=True, text=True, check=check, timeout=timeout, **options
    )


def xla_harness(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``xla-harness`` with these words to its end."""
    return run_program(sys.executable, "-m", "harness", *words, **options)


def failing_calls(folder: Path) -> Path:
    """Build ``failing_calls.c`` there, to be preloaded."""
    built, source = folder / "failing_calls.so", Path(__file__).with_name("failing_calls.c")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", built]
    run_program(*shlex.split(os.environ.get("CC", "cc")), *options, source, "-ldl", check=True)
    return built
