"""Which lines of Python a case executes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sensitivity.python_calls import called

PROGRAM = """
import sys
from pathlib import Path
import torch, torch_xla
from harness.sensitivity.python_calls import Calls
import twice

calls = Calls((twice.__file__,), Path(sys.argv[1]))
calls.start()
x = torch.ones(2, device="xla", requires_grad=True)
twice.Twice.apply(x).sum().backward()
calls.stop()
"""
TWICE = """
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
"""


@pytest.mark.long
def test_lines_of_a_backward_pass(tmp_path: Path) -> None:
    """PyTorch runs it in threads of its own, one for each device."""
    (tmp_path / "twice.py").write_text(TWICE)
    lines = tmp_path / "lines"
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(lines)],
        env={**os.environ, "PYTHONPATH": path, "PJRT_DEVICE": "CPU"},
        check=True,
    )
    assert called(lines) == {"twice": {7, 11}}
