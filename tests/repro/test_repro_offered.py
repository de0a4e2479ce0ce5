"""A script is offered, on the dashboard and in issues, for cases that can become one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.dashboard.case_facts import commands
from harness.issues import text

FILE = "suites/area/test_a.py"


@pytest.mark.parametrize(
    ("case", "offered"),
    [
        (f"{FILE}::test_x[cpu-4]", True),
        (f"{FILE}::TestX::test_x[cpu-2x4-mean]", True),
        (f"{FILE}::test_x[virtual-tpu-2x4]", True),
        (f"{FILE}::test_x[virtual-gpu-4-mean]", True),
        (f"{FILE}::test_x[virtual-tpu-4@chip-torch_tpu]", True),
        (f"{FILE}::test_x[tpu-aot-v6e:2x2]", False),
        (f"{FILE}::test_x", False),
    ],
)
def test_where(case: str, *, offered: bool) -> None:
    shown = " ".join(each.command for each in commands(case, [], []))
    assert ("xla-harness repro" in shown) == offered
    first = SimpleNamespace(case=case, stack="2.9.0", lane="cpu", before="", since="")
    lines = text._commands(cast("Any", first), cast("Any", SimpleNamespace(versions={})))
    assert any("xla-harness repro" in line for line in lines) == offered
