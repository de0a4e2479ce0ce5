"""``xla-harness stacks topologies``: what the installed libtpu compiles for."""

from __future__ import annotations

import argparse
import os

from harness.commands.output import answer, columns
from harness.commands.parsers import add_json
from harness.errors import BadInputError
from harness.model.topology import Topology
from harness.model.versions import installed
from harness.platforms.description import Generation
from harness.platforms.tpu import TPU
from harness.printable import folded


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from harness.lanes.aot import libtpu

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jaxlib says that it found libtpu
    os.environ.update(libtpu.ENVIRONMENT)
    libtpu.preload()
    refused: list[str] = []
    tables = [(generation, _taken(generation, refused)) for generation in TPU.generations]
    lines = [f"libtpu {installed('libtpu')} compiles for these slices, and for several of each:"]
    for generation, taken in tables:
        lines.append(f"{generation.name}, {generation.device_kind}")
        lines += folded(" ".join(taken) or "none", columns(), "  ", "  ")
    lines += [*refused, "pytest --lane tpu-aot --topology v6e:2x2; two slices of it: 2xv6e:2x2"]
    data = {
        "libtpu": installed("libtpu"),
        "topologies": {generation.name: taken for generation, taken in tables},
        "refused": refused,
    }
    answer(options, data, "\n".join(lines))
    return 0


def _taken(generation: Generation, refused: list[str]) -> list[str]:
    """Return the generation's slices that libtpu accepts; add its other errors to ``refused``."""
    from harness.lanes.aot import libtpu

    taken = []
    for grid in generation.grids:
        name = f"{generation.name}:{grid}"
        try:
            libtpu.devices(Topology.parse(name))
            taken.append(name)
        except BadInputError as error:
            refused.append(str(error))
    return taken
