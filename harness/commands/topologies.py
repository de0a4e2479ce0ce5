"""``xla-harness topologies``: what the installed libtpu compiles for."""

from __future__ import annotations

import argparse
import os
import textwrap

from harness.commands.output import show
from harness.commands.parsers import Commands
from harness.errors import BadInputError
from harness.lanes.tpu_aot import libtpu
from harness.model.generations import GENERATIONS
from harness.model.topology import Topology
from harness.model.versions import installed

_WIDTH = 80


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "topologies", help="the TPU slices that the installed libtpu compiles for"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    del options
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jaxlib says that it found libtpu
    os.environ.update(libtpu.ENVIRONMENT)
    libtpu.library_path()
    show(f"libtpu {installed('libtpu')} compiles for these slices, and for several of each:")
    refused = []
    for generation in GENERATIONS.values():
        taken = []
        for grid in generation.grids:
            name = f"{generation.name}:{grid}"
            try:
                libtpu.devices(Topology.parse(name))
                taken.append(name)
            except BadInputError as error:
                refused.append(str(error))
        lines = textwrap.wrap(
            " ".join(taken) or "none", _WIDTH, initial_indent="  ", subsequent_indent="  "
        )
        show("\n".join([f"{generation.name}, {generation.device_kind}", *lines]))
    show("\n".join(refused))
    show("pytest --lane tpu-aot --topology v6e:2x2; two slices of it: 2xv6e:2x2")
    return 0
