"""What a workflow runs, as KEY=JSON lines for its outputs."""

from __future__ import annotations

import json

import pytest

from harness import cli
from harness.commands.step_outputs import print_outputs
from harness.errors import BadInputError


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert cli.main(["ci", "plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_a_night_has_all_releases_and_the_one_with_wheels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = _plan(capsys, "night", "--nightly", "nightly", "--time", "2026-11-21T02:30:00Z")
    stacks = json.loads(outputs["stacks"])
    assert [entry["stack"] for entry in stacks] == [
        *("2.4.0", "2.5.1", "2.6.0", "2.7.0", "2.8.0", "2.9.0"),
        *("torch_tpu-0.2.0", "jax-0.12.0.1", "nightly"),
    ]
    assert [bool(entry["wheels"]) for entry in stacks] == [False] * 8 + [True]
    assert outputs["time"] == "2026-11-21T02:30:00Z"


def test_without_wheels_there_is_no_nightly_stack(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = _plan(capsys, "night", "--stacks", "2.5.1, 2.9.0+jax=0.8.0", "--nightly", "")
    names = [entry["stack"] for entry in json.loads(outputs["stacks"])]
    assert names == ["2.5.1", "2.9.0+jax=0.8.0"]


def test_cells_are_lanes_by_shards(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu,tpu-aot", "--shard", "2")
    cells = json.loads(outputs["cells"])
    assert [(cell["lane"], cell["shard"]) for cell in cells] == [
        *(("cpu", "1/2"), ("cpu", "2/2"), ("tpu-aot", "1/2"), ("tpu-aot", "2/2")),
    ]
    assert json.loads(outputs["artifacts"]) == [cell["artifact"] for cell in cells]
    assert len(set(json.loads(outputs["artifacts"]))) == 4


def test_a_stack_without_libtpu_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = _plan(capsys, "cells", "--stack", "2.5.1", "--lanes", "cpu,virtual-tpu,tpu-aot")
    assert {cell["lane"] for cell in json.loads(outputs["cells"])} == {"cpu", "virtual-tpu"}


def test_artifacts_of_a_stack_with_and_without_wheels_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu")
    own = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu", "--wheels", "dist")
    assert set(json.loads(plain["artifacts"])).isdisjoint(json.loads(own["artifacts"]))
    assert {cell["stack"] for cell in json.loads(own["cells"])} == {"2.9.0"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["night", "--stacks", "2.9"], "did you mean"),
        (["cells", "--stack", "2.9.0", "--lanes", "cpus"], "expected one of cpu"),
        (["cells", "--stack", "2.9.0", "--lanes", "cpu", "--shard", "0"], "expected NUMBER/COUNT"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ci", "plan", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "time",
    ["yesterday", "2026-11-21T02:30:00Z\nstacks=[]", "2026-11-21\x85", "0001-01-01T00:00+05:00"],
)
def test_time_of_a_night_is_refused_before_it_begins(
    time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the night it would be too late; behind a line break would be another output."""
    assert cli.main(["ci", "plan", "night", "--time", time]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--time: expected ISO 8601, as 2026-11-21T02:30:00Z" in captured.err


def test_time_is_printed_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    assert _plan(capsys, "night", "--time", "2026-11-21T05:30+03:00")["time"] == (
        "2026-11-21T02:30:00Z"
    )


@pytest.mark.parametrize("value", ["1\nstacks=[]", "1\r", "1\x85x", "1\u2028x"])
def test_output_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInputError, match="expected one line of printable characters"):
        print_outputs({"sound": 1, "key": value})
    assert capsys.readouterr().out == ""
