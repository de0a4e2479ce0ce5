"""Keeps each program that the plugin of a virtual device is given, and changes none."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from harness.lanes.virtual.lowering import as_hlo
from harness.reduce.program_files import as_stablehlo
from harness.reduce.recording import FOLDER_VARIABLE

_numbers = itertools.count()


def plant(form: str, code: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """Write a program down as StableHLO; return it as it is.

    Args:
        form: ``hlo`` for a serialised HloModuleProto, ``mlir`` for a StableHLO portable artifact.
        code: in that form.
    """
    path = Path(os.environ[FOLDER_VARIABLE], f"{os.getpid()}-{next(_numbers):05}.mlir")
    path.write_text(as_stablehlo(as_hlo(form, code)))
    return code, []
