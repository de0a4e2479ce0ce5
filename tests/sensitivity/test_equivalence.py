"""Whether two programs do the same.

Collectives in which nothing is exchanged decide nothing, nor do GSPMD's shardings beside Shardy's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.sensitivity import equivalence
from harness.sensitivity.fault import STALE

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

    options = xla_client.CompileOptions()
    options.num_replicas = options.executable_build_options.num_replicas = 2
    ask(tmp_path, PROGRAM.format(groups=groups), options, operator, equal=equal)


FOR_SHARDY = r"""
HloModule program, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}
ENTRY main {
  x = f32[4] parameter(0), sharding={devices=[2]<=[2]},
    frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\"x\"}]>"}
  two = f32[] constant(2)
  twos = f32[4] broadcast(two), dimensions={}
  y = f32[4] subtract(x, twos)
  r = f32[4] custom-call(y), custom_call_target="xla.sdy.FuncResultSharding",
    custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{}]>]>"}
  ROOT results = (f32[4], f32[]) tuple(r, two), sharding={{replicated}, {replicated}}
}
"""


@pytest.mark.parametrize("operator", ["operands-swapped", "sharding-dropped"])
def test_a_program_for_shardy(tmp_path: Path, operator: str) -> None:
    """What is dropped is Shardy's own attribute."""
    ask(tmp_path, FOR_SHARDY, _by_shardy(), operator, equal=False)


CONSTRAINED = r"""
HloModule program, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}
ENTRY main {
  x = f32[4] parameter(0)
  divided = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]},
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{\"x\"}]>]>"}
  double = f32[4] add(divided, divided)
  ROOT whole = f32[4] custom-call(double), custom_call_target="Sharding", sharding={replicated},
    frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{}]>]>"}
}
"""


def test_a_lost_constraint_of_shardy(tmp_path: Path) -> None:
    """The call without its annotation would have GSPMD ask for the other one's."""
    ask(tmp_path, CONSTRAINED, _by_shardy(), "sharding-dropped", equal=False)


EXPORTED = r"""
HloModule program, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}
ENTRY main {
  x = f32[4] parameter(0), sharding={devices=[2]<=[2]},
    frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\"x\"}]>"}
  divided = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
  own = f32[2] custom-call(divided), custom_call_target="SPMDFullToShardShape", sharding={manual}
  two = f32[] constant(2), sharding={manual}
  twos = f32[2] broadcast(two), dimensions={}, sharding={manual}
  less = f32[2] subtract(own, twos), sharding={manual}
  copy = f32[2] custom-call(less), custom_call_target="Sharding", sharding={manual}
  ROOT r = f32[4] custom-call(copy), custom_call_target="SPMDShardToFullShape",
    sharding={devices=[2]<=[2]}
}
"""


@pytest.mark.parametrize(
    ("operator", "equal"), [("operands-swapped", False), ("sharding-devices-reversed", False)]
)
def test_a_program_for_shardy_that_calls_gspmds(
    tmp_path: Path, operator: str, *, equal: bool
) -> None:
    """As JAX compiles what an older JAX has exported."""
    ask(tmp_path, EXPORTED, _by_shardy(), operator, equal=equal)


SUM = """
HloModule program
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
"""
CALLED = (
    SUM
    + """
kernel {
  own = f32[2] parameter(0)
  zero = f32[] constant(0), sharding={manual}
  total = f32[] reduce(own, zero), dimensions={0}, to_apply=sum, sharding={manual}
  totals = f32[2] broadcast(total), dimensions={}, sharding={manual}
  ROOT r = f32[2] subtract(own, totals), sharding={manual}
}
ENTRY main {
  x = f32[4] parameter(0), sharding={devices=[2]<=[2]}
  y = f32[4] parameter(1)
  z = f32[1] parameter(2)
  divided = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
  own = f32[2] custom-call(divided), custom_call_target="SPMDFullToShardShape", sharding={manual}
  less = f32[2] call(own), to_apply=kernel, sharding={manual}
  copy = f32[2] custom-call(less), custom_call_target="Sharding", sharding={manual}
  full = f32[4] custom-call(copy), custom_call_target="SPMDShardToFullShape",
    sharding={devices=[2]<=[2]}
  zero = f32[] constant(0)
  total = f32[] reduce(y, zero), dimensions={0}, to_apply=sum
  scale = f32[] reshape(z)
  product = f32[] multiply(total, scale)
  ROOT results = (f32[4], f32[]) tuple(full, product)
}
"""
)


def test_a_constant_of_a_manual_region_and_of_the_rest(tmp_path: Path) -> None:
    """StableHLO has one of two equal ones, and that is then in the manual region."""
    ask(tmp_path, CALLED, _by_gspmd(), "operands-swapped", equal=False)


def _by_gspmd() -> Any:
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    build = options.executable_build_options
    build.num_partitions, build.use_spmd_partitioning = 2, True
    return options


def _by_shardy() -> Any:
    options = _by_gspmd()
    options.executable_build_options.use_shardy_partitioner = True
    return options


SENT = """
HloModule program
ENTRY main {
  x = f32[4] parameter(0)
  ROOT r = f32[4] collective-permute(x), source_target_pairs=PAIRS
}
"""


@pytest.mark.parametrize(("other", "equal"), [("{{1,0},{0,1}}", True), ("{{0,1}}", False)])
def test_pairs_in_another_order(tmp_path: Path, other: str, *, equal: bool) -> None:
    both = "{{0,1},{1,0}}"
    stale(tmp_path, SENT.replace("PAIRS", both), SENT.replace("PAIRS", other), equal=equal)


SCATTERED = (
    SUM
    + """
ENTRY main {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT r = (f32[2], f32[2]) reduce-scatter(OPERANDS), channel_id=1, dimensions={0},
    use_global_device_ids=true, replica_groups={{0,1}}, to_apply=sum
}
"""
)


@pytest.mark.parametrize(("other", "equal"), [("x, y", True), ("y, x", False)])
def test_a_reduce_scatter_of_several(tmp_path: Path, other: str, *, equal: bool) -> None:
    """Which StableHLO does not have."""
    stale(
        tmp_path,
        SCATTERED.replace("OPERANDS", "x, y"),
        SCATTERED.replace("OPERANDS", other),
        equal=equal,
    )


NUMBER = "HloModule p\nENTRY main { n = s32[] parameter(0) ROOT r = s32[] OPCODE(n, n) }"


@pytest.mark.parametrize(("other", "equal"), [("add", True), ("multiply", False)])
def test_a_parameter_that_is_one_integer(tmp_path: Path, other: str, *, equal: bool) -> None:
    program = NUMBER.replace("OPCODE", "add")
    stale(tmp_path, program, NUMBER.replace("OPCODE", other), equal=equal)


def stale(folder: Path, program: str, other: str, *, equal: bool) -> None:
    """Ask about a program in the place of another one, on two devices."""
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = options.executable_build_options.num_replicas = 2
    module = xla_client._xla.hlo_module_from_text(other)
    folder.joinpath("other").write_bytes(module.as_serialized_hlo_module_proto())
    ask(folder, program, options, STALE, equal=equal)


def ask(folder: Path, program: str, options: Any, operator: str, *, equal: bool) -> None:
    """Ask as the command does, in another process, about the operator's first place."""
    from jaxlib import xla_client

    module = xla_client._xla.hlo_module_from_text(program)
    folder.joinpath("program").write_bytes(module.as_serialized_hlo_module_proto())
    folder.joinpath("program.options").write_bytes(options.SerializeAsString())
    request = {"number": 1, "folder": str(folder), "program": "program", "operator": operator}
    done = subprocess.run(
        [sys.executable, "-m", equivalence.__name__],
        input=json.dumps(request | {"place": 0, "other": "other"}) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["equivalent"] is equal, (answer, done.stderr)
