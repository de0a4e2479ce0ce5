"""What a workflow runs, as KEY=JSON lines for its outputs."""

from __future__ import annotations

import json

import pytest

from harness import cli


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert cli.main(["plan", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def test_a_night_has_all_releases_and_the_one_with_wheels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _plan(capsys, "night", "--nightly", "nightly", "--time", "2026-11-21T02:30:00Z")
    stacks = json.loads(said["stacks"])
    assert [entry["stack"] for entry in stacks] == [
        *("2.4.0", "2.5.1", "2.6.0", "2.7.0", "2.8.0", "2.9.0"), "nightly",
    ]  # fmt: skip
    assert [bool(entry["wheels"]) for entry in stacks] == [False] * 6 + [True]
    assert said["time"] == "2026-11-21T02:30:00Z"


def test_without_wheels_there_is_no_nightly_stack(capsys: pytest.CaptureFixture[str]) -> None:
    said = _plan(capsys, "night", "--stacks", "2.5.1, 2.9.0+jax=0.8.0", "--nightly", "")
    names = [entry["stack"] for entry in json.loads(said["stacks"])]
    assert names == ["2.5.1", "2.9.0+jax=0.8.0"]


def test_cells_are_lanes_by_shards(capsys: pytest.CaptureFixture[str]) -> None:
    said = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu,tpu-aot", "--shard", "2")
    cells = json.loads(said["cells"])
    assert [(cell["lane"], cell["shard"]) for cell in cells] == [
        *(("cpu", "1/2"), ("cpu", "2/2"), ("tpu-aot", "1/2"), ("tpu-aot", "2/2")),
    ]
    assert json.loads(said["artifacts"]) == [cell["artifact"] for cell in cells]
    assert len(set(json.loads(said["artifacts"]))) == 4


def test_a_stack_without_libtpu_compiles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said = _plan(capsys, "cells", "--stack", "2.5.1", "--lanes", "cpu,virtual-tpu,tpu-aot")
    assert {cell["lane"] for cell in json.loads(said["cells"])} == {"cpu", "virtual-tpu"}


def test_artifacts_of_a_stack_with_and_without_wheels_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu")
    own = _plan(capsys, "cells", "--stack", "2.9.0", "--lanes", "cpu", "--wheels", "dist")
    assert set(json.loads(plain["artifacts"])).isdisjoint(json.loads(own["artifacts"]))
    assert {cell["stack"] for cell in json.loads(own["cells"])} == {"2.9.0"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["night", "--stacks", "2.9"], "did you mean"),
        (["cells", "--stack", "2.9.0", "--lanes", "cpus"], "expected one of cpu"),
        (["cells", "--stack", "2.9.0", "--lanes", "cpu", "--shard", "0"], "expected NUMBER/COUNT"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err
