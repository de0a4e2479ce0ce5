"""Detection on real releases: what torch_xla 2.5.1 gets wrong and 2.9.0 does not, by qualify.

Not part of the harness's own tests: it downloads a second stack of several GB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CASES = {
    "test_exports": "suites/collectives/test_export_all_reduce.py",
    "test_scalar_parameter_shards": "suites/spmd_specs/test_scalars_fsdpv2.py",
    "test_one_discovery": "suites/multislice_flash_attention/test_discovery.py",
}
# Of the discoveries those of two slices of one chip: the others differ in nothing but their time.
CHOSEN = (
    "test_exports or test_scalar_parameter_shards or "
    "(test_one_discovery and tpu-2x1 and not splash)"
)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("qualify")
    target = folder / "answer.json"
    command = [sys.executable, "-m", "harness", "qualify", "2.9.0", "2.5.1", "--reruns", "1"]
    command += ["--json", str(target), "--out", str(folder), "--reports", str(folder)]
    command += ["--", *CASES.values(), "-k", CHOSEN]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == 1
    return json.loads(target.read_text())


@pytest.mark.parametrize(
    ("function", "issue", "layer", "least"),
    [
        ("test_exports", "pytorch/xla#8854", "export", 12),
        ("test_scalar_parameter_shards", "pytorch/xla#8522", "trace", 4),
        ("test_one_discovery", "pytorch/xla#8812", "discovery count", 12),
    ],
)
def test_finds(answer: dict[str, Any], function: str, issue: str, layer: str, least: int) -> None:
    matches = [f for f in answer["cases"] if f"::{function}" in f["case"]]
    assert len(matches) >= least
    assert {f["verdict"] for f in matches} == {"regressed"}
    assert {f["layer"] for f in matches} == {layer}
    assert all(issue in f["issues"] for f in matches)
    assert {f["component"] for f in matches} == {"torch_xla"}


def test_finds_nothing_else(answer: dict[str, Any]) -> None:
    named = [f["case"] for f in answer["cases"] if not any(f"::{c}" in f["case"] for c in CASES)]
    assert named == []
