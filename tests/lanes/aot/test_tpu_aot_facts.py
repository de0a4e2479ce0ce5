"""What is read from an optimized program, in HLO that XLA's own parser has read."""

from __future__ import annotations

import pytest
from jaxlib import xla_client

from harness.lanes.aot.optimized import CompiledCollective, Optimized, Transfer, read

ADD = "add { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT r = f32[] add(x, y) }\n"


def facts(body: str, before: str = "", devices: int = 4) -> Optimized:
    text = f"HloModule m\n{ADD}{before}\nENTRY main {{\n{body}\n}}"
    module = xla_client._xla.hlo_module_from_text(text)
    return read(module.as_serialized_hlo_module_proto(), devices)


def test_a_collective_has_groups_bytes_and_kind() -> None:
    program = facts(
        "p = f32[8,16] parameter(0)\n"
        "ROOT r = f32[8,16] all-reduce(p), replica_groups={{0,1},{2,3}}, to_apply=add"
    )
    assert program.collectives == (CompiledCollective("all-reduce", ((0, 1), (2, 3)), 512),)
    assert (program.bytes_inside, program.bytes_across) == (512, 0)


def test_groups_may_be_written_as_iota() -> None:
    program = facts(
        "p = bf16[4] parameter(0)\n"
        "ROOT r = bf16[16] all-gather(p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}"
    )
    assert program.collectives == (
        CompiledCollective("all-gather", ((0, 2, 4, 6), (1, 3, 5, 7)), 32),
    )


@pytest.mark.parametrize(
    ("kind", "text", "size"),
    [
        ("reduce-scatter", "f32[4] reduce-scatter(p), dimensions={0}, to_apply=add", 64),
        ("all-to-all", "f32[16] all-to-all(p), dimensions={0}", 64),
        ("collective-permute", "f32[16] collective-permute(p)", 64),
    ],
)
def test_bytes_are_of_the_larger_side(kind: str, text: str, size: int) -> None:
    where = (
        "source_target_pairs={{0,1},{1,0}}" if "permute" in kind else "replica_groups={{0,1,2,3}}"
    )
    (collective,) = facts(f"p = f32[16] parameter(0)\nROOT r = {text}, {where}").collectives
    assert (collective.kind, collective.bytes) == (kind, size)
    if "permute" in kind:
        assert collective.groups == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("s4", 8),
        ("f4e2m1fn", 8),
        ("f8e3m4", 16),
        ("f8e4m3", 16),
        ("f8e8m0fnu", 16),
        ("bf16", 32),
        ("c128", 256),
    ],
)
def test_bytes_of_each_number_type(name: str, size: int) -> None:
    (collective,) = facts(
        f"p = {name}[4] parameter(0)\n"
        f"ROOT r = {name}[16] all-gather(p), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}"
    ).collectives
    assert collective.bytes == size


def test_a_started_collective_counts_once() -> None:
    program = facts(
        "p = f32[4] parameter(0)\n"
        "s = (f32[4], f32[16]) all-gather-start(p), replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "ROOT d = f32[16] all-gather-done(s)"
    )
    assert program.collectives == (CompiledCollective("all-gather", ((0, 1, 2, 3),), 64),)


def loop(step: str = "add(i, one)", until: str = "LT", end: int = 5) -> str:
    """A loop's body and condition over (i, v); the body sums v over all devices."""
    return f"""
body {{
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  r = f32[8] all-reduce(v), replica_groups={{}}, to_apply=add
  one = s32[] constant(1)
  two = s32[] constant(2)
  f = f32[] constant(2)
  d = s32[] convert(f)
  n = s32[] {step}
  ROOT t = (s32[], f32[8]) tuple(n, r)
}}
cond {{
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  k = s32[] constant({end})
  ROOT c = pred[] compare(i, k), direction={until}
}}
"""


@pytest.mark.parametrize(
    ("config", "count"), [(', backend_config={"known_trip_count":{"n":"5"}}', 5), ("", None)]
)
def test_a_loop_executes_its_collectives_as_often_as_it_turns(
    config: str, count: int | None
) -> None:
    program = facts(
        f"p = (s32[], f32[8]) parameter(0)\n"
        f"ROOT w = (s32[], f32[8]) while(p), condition=cond, body=body{config}",
        loop(),
    )
    assert program.collectives == (CompiledCollective("all-reduce", (), 32, count),)
    assert program.bytes_inside == 32 * (count or 1)  # an unknown number counts once


@pytest.mark.parametrize(
    ("start", "parts", "count"),
    [
        (0, loop(), 5),
        (5, loop(), 0),
        (0, loop(until="LE"), 6),
        (10, loop("subtract(i, two)", "GT", 1), 5),
        (1, loop("multiply(i, two)", "LT", 100), 7),
        (0, loop("add(i, two)", "NE", 6), 3),
        (0, loop("add(i, two)", "NE", 5), None),  # it never ends
        (0, loop("copy(i)"), None),
        (0, loop("add(i, d)"), None),  # what a float becomes is not looked at
    ],
)
def test_a_loop_over_integers_is_counted(start: int, parts: str, count: int | None) -> None:
    program = facts(
        f"v = f32[8] parameter(0)\nz = s32[] constant({start})\ni = s32[] copy(z)\n"
        "p = (s32[], f32[8]) tuple(i, v)\n"
        "ROOT w = (s32[], f32[8]) while(p), condition=cond, body=body",
        parts,
    )
    assert [c.count for c in program.collectives] == [count]
    assert program.bytes_inside == 32 * (1 if count is None else count)


def test_a_pair_of_host_transfers_is_one_exchange() -> None:
    """In the words of libtpu 0.0.23."""
    attributes = (
        'frontend_attributes={_xla_host_transfer_rendezvous="a_1",'
        '_xla_megascale_target="{1,2}x{0:1}",_xla_megascale_transfer_type="ALL_GATHER"}'
    )
    program = facts(
        "p = f32[4] parameter(0)\nt = token[] after-all()\n"
        f"s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true, "
        f"{attributes}\n"
        "sd = token[] send-done(s), channel_id=1, is_host_transfer=true\n"
        f"r = (f32[8], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true, "
        f"{attributes}\n"
        "rd = (f32[8], token[]) recv-done(r), channel_id=2, is_host_transfer=true\n"
        "ROOT o = f32[8] get-tuple-element(rd), index=0",
        devices=2,
    )
    assert program.transfers == (Transfer("ALL_GATHER", ((0, 2), (1, 3)), 16, 32),)
    assert program.bytes_across == 16


def test_a_kernel_is_counted() -> None:
    program = facts(
        'p = f32[8] parameter(0)\nk = f32[8] custom-call(p), custom_call_target="tpu_custom_call"\n'
        'ROOT o = f32[8] custom-call(k), custom_call_target="SliceId"'
    )
    assert program.kernels == 1
