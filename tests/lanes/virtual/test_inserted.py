"""Computations of other modules in the place of a program's instructions."""

from __future__ import annotations

from harness.lanes.hlo import Computation, Instruction, Metadata, Module
from harness.lanes.virtual.inserted import Inserted


def test_frames_of_the_other_module_are_left_out() -> None:
    """Its frames do not come along: XLA warns of each number that the program does not have."""
    metadata = Metadata(source_file="train.py", source_line=7, stack_frame_id=3)
    instruction = Instruction(name="x", id=1, metadata=metadata.SerializeToString())
    body = Computation(name="entry", id=1, root_id=1, instructions=[instruction])
    module = Module(computations=[body], entry_computation_id=1)
    program = Module.FromString(module.SerializeToString())
    (added,) = Inserted(program).add(module.SerializeToString(), "other")
    kept = Metadata.FromString(added.instructions[0].metadata)
    assert (kept.source_file, kept.source_line, kept.stack_frame_id) == ("train.py", 7, 0)
