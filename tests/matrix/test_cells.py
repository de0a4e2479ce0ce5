"""Which cells a command runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from support.paths import ROOT

from harness.commands.matrix import cells_of
from harness.stacks.catalogue import Catalogue


@pytest.mark.parametrize(
    ("once", "left"),
    [(False, [(), ()]), (True, [(), ("virtual-tpu",)])],
)
def test_a_case_runs_on_each_lane_or_on_the_first(
    tmp_path: Path, *, once: bool, left: list[tuple[str, ...]]
) -> None:
    stacks = [Catalogue(ROOT / "fixtures/stacks").find("2.9.0")]
    options = argparse.Namespace(lanes="virtual-tpu,cpu", arguments=[])
    cells = cells_of(stacks, options, tmp_path, once=once)
    assert [cell.lane for cell in cells] == ["virtual-tpu", "cpu"]
    assert [cell.elsewhere for cell in cells] == left
