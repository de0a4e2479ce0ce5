"""The messages of HLO: what is checked in is what their source says, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from harness.lanes.hlo import Instruction, Module

LANES = ROOT / "harness" / "lanes"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protos")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([ROOT / ".ci" / "protos", folder], env=os.environ | {"PATH": path}, check=True)
    return folder


@pytest.mark.parametrize("suffix", [".binpb", ".pyi"])
@pytest.mark.parametrize("name", ["hlo", "virtual/executor/executable"])
def test_what_is_checked_in_is_what_the_script_makes(made: Path, name: str, suffix: str) -> None:
    checked_in = LANES / f"{name}{suffix}"
    assert checked_in.read_bytes() == (made / checked_in.name).read_bytes(), "run .ci/protos"


def test_fields_of_other_versions_pass_through() -> None:
    program = Module(entry_computation_id=7)
    program.computations.add(id=7).instructions.add(name="x", sharding=b"")
    unknown = b"\xfa\x07\x03abc"  # field 127, a text
    read = Module.FromString(program.SerializeToString() + unknown)
    assert read.SerializeToString() == program.SerializeToString() + unknown
    instruction: Instruction = read.computations[0].instructions[0]
    assert instruction.HasField("sharding"), "an empty sharding is one"
    assert not instruction.HasField("metadata")
