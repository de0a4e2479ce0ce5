"""A new stack is one file: all that deals with stacks then has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import cli
from harness.errors import BadInputError
from harness.expectations import Expectations
from harness.stacks.catalogue import known_versions

OLD = 'python = "3.11"\n[pins]\ntorch = "2.9.0"\ntorch_xla = "2.9.0"\njax = "0.9.0"\n'
NEW = 'python = "3.11"\n[pins]\ntorch = "2.8.0"\ntorch_xla = "2.8.0"\njax = "0.6.5"\n'
ENTRY = """\
[[expectation]]
cases = ["a.py::test_a"]
signature = "wrong"
issue = "pytorch/xla#1"
reason = "Only that version has it."
stack = { jax = "==0.6.5" }
"""


def test_one_file_adds_a_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacks, entries = tmp_path / "stacks", tmp_path / "expectations"
    stacks.mkdir()
    entries.mkdir()
    (stacks / "old.toml").write_text(OLD)
    (entries / "area.toml").write_text(ENTRY)

    def said(command: str, *arguments: str) -> str:
        assert cli.main([*command.split(), "--folder", str(stacks), *arguments]) == 0
        return capsys.readouterr().out

    def planned() -> list[str]:
        line = said("ci plan", "night").splitlines()[0].removeprefix("stacks=")
        return [stack["stack"] for stack in json.loads(line)]

    def listed() -> list[str]:
        return [stack["name"] for stack in json.loads(said("stacks", "list", "--json"))]

    assert listed() == ["old"]
    assert planned() == ["old"]
    with pytest.raises(BadInputError, match=r"area\.toml.*jax"):
        Expectations.load(entries, known_versions(stacks))

    (stacks / "new.toml").write_text(NEW)

    (row,) = [line for line in said("stacks", "list").splitlines() if line.startswith("new ")]
    assert row.split() == ["new", "3.11", "2.8.0", "0.6.5", "-", "-"]
    assert planned() == ["new", "old"]  # by the version of torch_xla
    cells = said("ci plan", "cells", "--stack", "new", "--lanes", "cpu,tpu-aot").splitlines()[0]
    assert [cell["lane"] for cell in json.loads(cells.removeprefix("cells="))] == ["cpu"]
    Expectations.load(entries, known_versions(stacks))
