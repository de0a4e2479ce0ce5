"""A reduced program as one script for an upstream issue, which needs jax and NumPy alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from packaging.version import Version

from harness.model.topology import Topology
from harness.model.versions import ABSENT, installed
from harness.reduce.compiled import Flags, Tile
from harness.reduce.deciding import Deciding
from harness.reduce.failing import FailingProgram
from harness.reduce.stablehlo import count, devices, replicas_and_partitions
from harness.reduce.trial import ProgramEnding, in_a_fork, placement

_SCRIPT = '''\
# /// script
# requires-python = ">=3.10"
# dependencies = [{dependencies}]
# ///
"""{title}

{facts}
"""
{before}
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import xla_client

PROGRAM = r"""
{program}"""
REPLICAS, PARTITIONS = {replicas}, {partitions}
DEVICES = REPLICAS * PARTITIONS
{arguments}
{client}

def compiled(module):
    """Compile the program for the devices."""
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = REPLICAS, PARTITIONS
    options.env_option_overrides = {overrides}
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = REPLICAS, PARTITIONS
    build.use_spmd_partitioning = PARTITIONS > 1
    build.use_shardy_partitioner = "sdy." in PROGRAM
    build.allow_spmd_sharding_propagation_to_output = [True]
    grid = np.array([device.id for device in devices]).reshape(REPLICAS, PARTITIONS)
    options.device_assignment = xla_client.DeviceAssignment.create(grid)
    build.device_assignment = options.device_assignment
    return client.{compile}


executable = compiled({module})
{run}'''
_FOR_CPUS = """\
client = xla_client.make_cpu_client({number})
devices = client.local_devices()[:DEVICES]
"""
_FOR_A_VENDOR = """\
# What the program is compiled for; none of these devices is needed.
(library,) = [path for folder in sys.path for path in Path(folder).glob({library!r})]
plugin = xla_client.load_pjrt_plugin_dynamically("aot", str(library))
xla_client.initialize_pjrt_plugin("aot")
description = xla_client.make_c_api_device_topology(plugin, {name!r}, **{options!r})
devices = description._make_compile_only_devices()[:DEVICES]
client = devices[0].client
context = mlir.make_ir_context()
"""
_RUN = """\
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
_LOOK = """\
text = executable.hlo_modules()[0].to_string()
print(text)
if match := re.search({has!r}, text):
    raise SystemExit(f"the compiled program has {{match[0]!r}}")
"""
_WEIGH = """\
print(executable.hlo_modules()[0].to_string())
memory = executable.get_compiled_memory_stats().temp_size_in_bytes
raise SystemExit(f"{{memory}} bytes of temporaries; it {text}")
"""
_GIVEN = "(module, xla_client.DeviceList(tuple(devices)), options)"
# The fields of JAX's own form for reports of bugs.
_ISSUE = """\
### Description

{title}

{facts}

```python
{script}```

### System info (python version, jaxlib version, accelerator, etc.)

```
{system}
```
"""


@dataclass(frozen=True)
class Origin:
    """What a report says around the program: where it is of, its failure, and what decides it."""

    case: FailingProgram
    ending: ProgramEnding
    deciding: Deciding
    was: int  # instructions of the program before


def script(text: str, about: Origin) -> str:
    """Return the script. It ends with an error as long as the program fails."""
    kind, target = about.ending.kind, about.case.target
    parts = _of_vendor(target.topology) if target.topology else _of_cpus(devices(text))
    arguments, run = "", ""
    replicas, partitions = replicas_and_partitions(text)
    if kind in ("wrong", "failed", "crash", "hang") and not target.topology:
        answer, placed = in_a_fork(partial(placement, text, about.ending.seed or 1))
        if answer == "values":
            arguments, run = _arguments(placed), _RUN
            if placed["expected"] is not None and kind == "wrong":
                run += _COMPARE
    elif kind == "has":
        parts["before"] = f"\nimport re{parts['before']}"
        run = _LOOK.format(has=target.has)
    elif kind == "larger":
        run = _WEIGH.format(text=about.ending.text)
    return _SCRIPT.format(
        **parts,
        title=_title(about.ending),
        facts="\n".join(f"{name + ':':12} {value}" for name, value in _facts(text, about).items()),
        program=text.strip() + "\n",
        replicas=replicas,
        partitions=partitions,
        arguments=arguments,
        run=run,
    )


def issue(text: str, about: Origin) -> str:
    """Return the text of an issue, with the script in it."""
    import platform

    facts = _facts(text, about)
    versions = {"python": platform.python_version(), **_versions("jax", "jaxlib", "numpy")}
    return _ISSUE.format(
        title=_title(about.ending),
        facts="\n".join(f"- {name}: {value}" for name, value in facts.items()),
        script=script(text, about),
        system="\n".join(
            [
                *(f"{name}: {version}" for name, version in versions.items()),
                f"os: {platform.platform()}",
                f"devices: {devices(text)} x {about.case.target.topology or 'cpu'}",
            ]
        ),
    )


def _facts(text: str, about: Origin) -> Mapping[str, str]:
    case, decides = about.case, about.deciding
    facts = {
        "Program": f"{count(text)} instructions for {devices(text)} devices, of {about.was}",
        "From": case.source,
        "There": case.failure,
        "Here": f"{about.ending.kind}: {about.ending.text}",
        "For": case.target.topology,
        "With": _listed(_versions("jax", "jaxlib")),
        "Not with": _listed(case.base.versions) if case.base else "",
        "Right with": ", or ".join(map(flag_text, decides.flags)),
        "Wrong after": decides.brought_by and f"pass {decides.brought_by}",
    }
    return {name: value for name, value in facts.items() if value}


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _versions(*names: str) -> Mapping[str, str]:
    """Return the versions of those that are installed; of ``a|b``, of either."""
    versions = {each: installed(each) for name in names for each in name.split("|")}
    return {name: version for name, version in versions.items() if version != ABSENT}


def _of_cpus(count: int) -> dict[str, str]:
    version = Version(installed("jaxlib"))
    takes_number, takes_devices = version >= Version("0.5"), version >= Version("0.6.1")
    flag = {} if takes_number else {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    return {
        "dependencies": _pins("jax", "jaxlib"),
        "before": _environment(flag),
        "client": _FOR_CPUS.format(number="num_devices=DEVICES" if takes_number else ""),
        "overrides": "[]",
        "compile": f"compile_and_load{_GIVEN}" if takes_devices else "compile(module, options)",
        "module": "PROGRAM",
    }


def _of_vendor(topology: str) -> dict[str, str]:
    from jaxlib.version import __version_info__

    from harness.lanes.aot.vendor import vendor_for

    parsed = Topology.parse(topology)
    vendor = vendor_for(parsed)
    _, (name, options) = in_a_fork(lambda: ("values", vendor.described(parsed)))
    imports = "\nimport sys\nfrom pathlib import Path\n\nfrom jax._src.interpreters import mlir\n"
    return {
        "dependencies": _pins("jax", *vendor.NEEDS),
        "before": _environment(vendor.ENVIRONMENT) + imports,
        "client": _FOR_A_VENDOR.format(library=vendor.LIBRARY, name=name, options=options),
        "overrides": str([*vendor.OPTIONS.items()]),
        "compile": f"compile{_GIVEN}",
        # Since jaxlib 0.8 a module, which it serialises itself.
        "module": "mlir.ir.Module.parse(PROGRAM, context)"
        if __version_info__ >= (0, 8)
        else "PROGRAM.encode()",
    }


def _pins(*names: str) -> str:
    return ", ".join(f'"{name}=={version}"' for name, version in _versions(*names).items())


def _environment(variables: Mapping[str, str]) -> str:
    """Return the lines that set what was set here; XLA reads it when it is imported."""
    flags = [variables.get("XLA_FLAGS", ""), os.environ.get("XLA_FLAGS", "")]
    own = {"XLA_FLAGS": " ".join(filter(None, flags))} if any(flags) else {}
    given = {**variables, **own}
    return f"\nimport os\n\nos.environ.update({given!r})\n" if given else ""


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


def _tiles(columns: Sequence[Sequence[Tile]]) -> str:
    rows = [f"    [{', '.join(map(_tile, column))}]," for column in columns]
    return "\n".join(["[", *rows, "]"])


def _tile(bounds: Tile) -> str:
    if not bounds or isinstance(bounds, int):
        return str(bounds)
    return f"np.s_[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"
