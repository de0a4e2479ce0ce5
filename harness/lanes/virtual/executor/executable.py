"""The messages of ``executable.proto``: an executable of XLA's CPU compiler."""

from pathlib import Path

from harness.lanes.hlo import load

globals().update(load(Path(__file__).with_suffix(".binpb")))
