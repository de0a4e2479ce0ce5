"""``xla-harness stacks topologies``: what the installed compilers of TPUs and GPUs compile for."""

from __future__ import annotations

import argparse
import os

from harness.commands.output import answer, columns
from harness.commands.parsers import add_json
from harness.errors import BadInputError
from harness.lanes.aot.vendor import VendorCompiler, vendor_of
from harness.model.topology import Topology
from harness.model.versions import installed, present
from harness.platforms import PLATFORMS
from harness.platforms.description import Generation
from harness.printable import folded


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # jaxlib says that it found libtpu
    vendors = [(platform, vendor_of(platform)) for platform in PLATFORMS.own() if platform.compiler]
    reasons = {platform.title: vendor.missing() for platform, vendor in vendors}
    if all(reasons.values()):
        raise BadInputError("; ".join(f"{title}: {why}" for title, why in reasons.items()))
    compilers: dict[str, str] = {}
    topologies: dict[str, list[str]] = {}
    refused: list[str] = []
    lines: list[str] = []
    for platform, vendor in vendors:
        if why := reasons[platform.title]:
            lines.append(f"{platform.title}: {why}")
            continue
        os.environ.update(vendor.ENVIRONMENT)
        vendor.preload()
        versions = present({name: installed(name) for name in platform.packages})
        compilers |= versions
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"{named}: compiles for these, and for several of each:")
        for generation in platform.generations:
            taken = topologies[generation.name] = _taken(vendor, generation, refused)
            lines.append(f"{generation.name}, {generation.device_kind}")
            lines += folded(" ".join(taken) or "none", columns(), "  ", "  ")
        example = Topology.parse(vendor.DEFAULT)
        lane = f"pytest --lane {platform.name}-aot --topology {example.slice}"
        lines.append(f"{lane}; two of it: {example}")
    data = {"compilers": compilers, "topologies": topologies, "refused": refused}
    answer(options, data, "\n".join([*lines, *refused]))
    return 0


def _taken(vendor: VendorCompiler, generation: Generation, refused: list[str]) -> list[str]:
    """Return the slices or nodes that the compiler accepts; add its other errors to ``refused``."""
    taken = []
    for grid in generation.grids:
        name = f"{generation.name}:{grid}"
        try:
            vendor.devices(Topology.parse(name))
            taken.append(name)
        except BadInputError as error:
            refused.append(str(error))
    return taken
