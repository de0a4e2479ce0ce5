"""The Python names that a case may use, each a directive for mkdocstrings."""

from __future__ import annotations

_SECTIONS = {
    "Topologies": ["harness.model.topology.Topology", "harness.model.topology.Target"],
    "What frameworks ask of a virtual TPU": [
        "harness.lanes.events.EventLog",
        "harness.lanes.events.Events",
        "harness.lanes.events.Event",
        "harness.job.slices",
    ],
    "The TPU compiler": ["harness.lanes.aot.case_compiler.CaseCompiler"],
    "Programs as facts": ["harness.ir"],
    "Oracles": [
        "harness.oracles.collectives",
        "harness.oracles.dtensor",
        "harness.oracles.gloo",
        "harness.oracles.jax_cpu",
        "harness.oracles.replicas",
        "harness.oracles.sharding",
    ],
    "Errors": ["harness.errors"],
}


def page() -> str:
    """Return a section for each group of names."""
    head = "# Python\n\nWhat a case may import. Docstrings give units and the errors raised.\n"
    return "\n".join([head, *(_section(title, names) for title, names in _SECTIONS.items())])


def _section(title: str, names: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
