"""Faults where no plugin sees programs, and where no other process can run what they are in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.sensitivity import JAX_ALONE, sensitivity


def faults(
    folder: Path, given: Sequence[str], behind: Sequence[str], lane: str = "cpu"
) -> list[dict[str, Any]]:
    """What became of each fault."""
    report = folder / "told.json"
    options = ("-n1", f"--lane={lane}", f"--json={report}", f"--folder={folder / 'work'}")
    done = sensitivity(ROOT, *given, *options, behind=behind)
    assert done.code == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(report.read_text())["faults"]
    return results


@pytest.mark.long
@pytest.mark.measures_coverage
def test_jax_on_lane_cpu(tmp_path: Path) -> None:
    operators = "collective-dropped,groups-permuted,sharding-devices-reversed,stale-program"
    (tmp_path / "test_user.py").write_text((ROOT / "tests/sensitivity/user_tests.py").read_text())
    given = [str(tmp_path / "test_user.py"), f"--operators={operators},operands-swapped"]
    planted = faults(tmp_path, given, ["--topology=4", f"--rootdir={tmp_path}", *JAX_ALONE])
    verdicts = Counter((fault["operator"], fault["verdict"]) for fault in planted)
    assert all(verdicts[operator, "seen"] for operator in operators.split(","))
    assert {verdict for _, verdict in verdicts} == {"seen", "not seen", "equivalent"}
    blind = [fault for fault in planted if fault["verdict"] == "not seen"]
    assert [fault["case"].partition("::")[2] for fault in blind] == ["test_that_looks_at_nothing"]


@pytest.mark.long
def test_exported_programs(tmp_path: Path) -> None:
    """All-reduces of torch_xla, each of a tensor and of the token that orders them."""
    operators = ("collective-dropped", "reducer-changed", "reduced-twice", "narrowed")
    given = ["suites/collectives/test_export_all_reduce.py", f"--operators={','.join(operators)}"]
    planted = faults(tmp_path, given, ["-k=test_shape and (odd or empty2d)"])
    verdicts = {
        (fault["operator"], fault["case"].rpartition("-")[2].rstrip("]")): fault["verdict"]
        for fault in planted
    }
    assert verdicts == {
        (operator, shape): "equivalent" if shape == "empty2d" else "seen"
        for operator in operators
        for shape in ("odd", "empty2d")
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "which", "operator", "preload"),
    [
        (  # with random page numbers it reads out of bounds
            "multislice_flash_attention/test_jax_kernels.py",
            "paged_attention and 2x1-1",
            "comparison-changed",
            JAX_ALONE,
        ),
        pytest.param(
            "multislice_flash_attention/test_sharded_flash_attention.py",
            "masks and causal",
            "reduction-changed",
            (),
            marks=pytest.mark.measures_coverage,
        ),
        (
            "multislice_flash_attention/test_discovery.py",
            "one_discovery_with_a_global_mesh",
            "sharding-devices-reversed",
            (),
        ),
    ],
    ids=["paged", "torch_xla", "sorted"],
)
def test_kernels_are_compared_where_they_were_lowered(
    tmp_path: Path, file: str, which: str, operator: str, preload: Sequence[str]
) -> None:
    """Their interpreter calls Python functions that no other process has."""
    given = [f"suites/{file}", f"--operators={operator}", "--most=1"]
    planted = faults(tmp_path, given, [f"-k={which}", *preload], "virtual-tpu")
    assert [fault["verdict"] for fault in planted] == ["equivalent"]
