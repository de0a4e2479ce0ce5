"""Whether two programs do the same: collectives in which nothing is exchanged decide nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.sensitivity import equivalence

PROGRAM = """
HloModule program
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}
ENTRY main {{
  x = f32[4] parameter(0)
  ROOT r = f32[4] all-reduce(x), channel_id=1, use_global_device_ids=true,
    replica_groups={groups}, to_apply=sum
}}
"""
TOGETHER, ALONE = "{{0,1}}", "{{0},{1}}"


@pytest.mark.parametrize(
    ("groups", "operator", "equal"),
    [
        (TOGETHER, "collective-dropped", False),
        (TOGETHER, "reduced-twice", False),
        (TOGETHER, "groups-split", False),
        (ALONE, "collective-dropped", True),
        (ALONE, "reduced-twice", True),
        (ALONE, "groups-permuted", True),
        (ALONE, "groups-merged", False),
    ],
)
def test_two_programs(tmp_path: Path, groups: str, operator: str, *, equal: bool) -> None:
    from jaxlib import xla_client

    module = xla_client._xla.hlo_module_from_text(PROGRAM.format(groups=groups))
    options = xla_client.CompileOptions()
    options.num_replicas = options.executable_build_options.num_replicas = 2
    tmp_path.joinpath("program").write_bytes(module.as_serialized_hlo_module_proto())
    tmp_path.joinpath("program.options").write_bytes(options.SerializeAsString())
    told = {"number": 1, "folder": str(tmp_path), "program": "program", "operator": operator}
    done = subprocess.run(
        [sys.executable, "-m", equivalence.__name__],
        input=json.dumps(told | {"place": 0}) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["equivalent"] is equal, (answer, done.stderr)
