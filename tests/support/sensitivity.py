"""``xla-harness sensitivity`` as a user calls it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.commands import run_program

# What tests of JAX alone need imported before they are forked; torch takes longer than they run.
JAX_ALONE = ("-o", "xla_preload=jax.numpy jax.extend jax.experimental.pallas.tpu")


@dataclass(frozen=True)
class Ran:
    """A command that is over."""

    code: int
    stdout: str
    stderr: str


def sensitivity(folder: Path, *options: str, behind: Sequence[str] = ()) -> Ran:
    """Run it in ``folder``; ``behind`` is for pytest."""
    command = [sys.executable, "-m", "harness", "sensitivity", *options]
    done = run_program(*command, *(["--", *behind] if behind else []), cwd=folder, timeout=900)
    return Ran(done.returncode, done.stdout, done.stderr)
