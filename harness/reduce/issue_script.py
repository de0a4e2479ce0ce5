"""A reduced program as one script for an upstream issue, which needs jax and NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.model.versions import installed
from harness.reduce.deciding import Deciding
from harness.reduce.stablehlo import count, devices, replicas_and_partitions
from harness.reduce.trial import Flags, ProgramEnding, in_a_fork, placement

_SCRIPT = '''\
# /// script
# requires-python = ">=3.10"
# dependencies = ["jax=={jax}", "jaxlib=={jaxlib}"]
# ///
"""{title}

{facts}
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

PROGRAM = r"""
{program}"""
REPLICAS, PARTITIONS = {replicas}, {partitions}
DEVICES = REPLICAS * PARTITIONS
{arguments}

def compiled(client):
    """Compile the program for the client's devices."""
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = REPLICAS, PARTITIONS
    build = options.executable_build_options
    build.use_spmd_partitioning = PARTITIONS > 1
    build.use_shardy_partitioner = "sdy." in PROGRAM
    build.allow_spmd_sharding_propagation_to_output = [True]
    grid = np.arange(DEVICES).reshape(REPLICAS, PARTITIONS)
    options.device_assignment = xla_client.DeviceAssignment.create(grid)
    devices = client.local_devices()[:DEVICES]
    return client.compile_and_load(PROGRAM, xla_client.DeviceList(tuple(devices)), options)


client = xla_client.make_cpu_client(num_devices=DEVICES)
executable = compiled(client)
{run}'''

_RUN = """\
devices = client.local_devices()[:DEVICES]
everywhere = NamedSharding(Mesh(np.array(devices), "device"), PartitionSpec())
given = []
for value, parts in zip(ARGUMENTS, PARTS):
    tiles = [jax.device_put(value[part], device) for part, device in zip(parts, devices)]
    shape = tiles[0].shape
    given.append(jax.make_array_from_single_device_arrays(shape, everywhere, tiles))
results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
"""
_COMPARE = """\
for number, (parts, columns, expected) in enumerate(zip(RESULT_PARTS, results, EXPECTED)):
    whole = np.zeros_like(expected)
    for part, value in zip(parts, columns):
        whole[part] = np.asarray(value)
    print(f"result {number}\\n{whole}\\nexpected\\n{expected}")
    np.testing.assert_allclose(whole, expected, rtol=1e-3, atol=1e-3)
"""


@dataclass(frozen=True)
class Origin:
    """What a report says around the program: the source, its failure, and what decides it."""

    source: str
    failure: str
    ending: ProgramEnding
    deciding: Deciding
    was: int  # instructions of the program before


def script(text: str, about: Origin) -> str:
    """Return the script. It ends with an error as long as the program fails."""
    versions = {name: installed(name) for name in ("jax", "jaxlib")}
    facts = {
        "Program": f"{count(text)} instructions for {devices(text)} devices, of {about.was}",
        "From": about.source,
        "There": about.failure,
        "Here": f"{about.ending.kind}: {about.ending.text}",
        "With": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Right with": ", or ".join(map(flag_text, about.deciding.flags)),
        "Wrong after": about.deciding.brought_by and f"pass {about.deciding.brought_by}",
    }
    arguments, run = "", ""
    replicas, partitions = replicas_and_partitions(text)
    if about.ending.kind in ("wrong", "failed", "crash", "hang"):
        kind, placed = in_a_fork(partial(placement, text, about.ending.seed or 1))
        if kind == "values":
            arguments, run = _arguments(placed), _RUN
            if placed["expected"] is not None and about.ending.kind == "wrong":
                run += _COMPARE
    return _SCRIPT.format(
        **versions,
        title=_title(about.ending),
        facts="\n".join(f"{name + ':':12} {value}" for name, value in facts.items() if value),
        program=text.strip() + "\n",
        replicas=replicas,
        partitions=partitions,
        arguments=arguments,
        run=run,
    )


def _title(ending: ProgramEnding) -> str:
    return {
        "wrong": "A program that computes other numbers than its operations say.",
        "refused": "A valid program that the compiler refuses.",
        "failed": "A program that fails while it runs.",
        "crash": "A program that ends the process.",
        "hang": "A program that does not end.",
    }.get(ending.kind, "A program.")


def flag_text(flag: Flags) -> str:
    """Return a flag as XLA_FLAGS takes it."""
    return " ".join(f"--{name}={value}" for name, value in flag.items())


def _arguments(placed: Mapping[str, Any]) -> str:
    rows = [
        f"ARGUMENTS = {_arrays(placed['arguments'])}",
        f"PARTS = {_tiles(placed['parts'])}",
    ]
    if placed["expected"] is not None:
        rows += [
            f"RESULT_PARTS = {_tiles(placed['result_parts'])}",
            f"EXPECTED = {_arrays(placed['expected'])}",
        ]
    return "\n".join(rows) + "\n"


def _arrays(values: Sequence[Any]) -> str:
    rows = [f"    np.array({value.tolist()}, {str(value.dtype)!r})," for value in values]
    return "\n".join(["[", *rows, "]"])


def _tiles(columns: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> str:
    rows = [f"    [{', '.join(map(_tile, column))}]," for column in columns]
    return "\n".join(["[", *rows, "]"])


def _tile(bounds: Sequence[tuple[int, int]]) -> str:
    if not bounds:
        return "()"
    return f"np.s_[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"
