"""Layouts of a program's arguments and results, which StableHLO has in attributes and HLO has not.

In a layout is also that the array is in pinned memory of the host, which JAX's users look for.

PJRT takes those of HLO as options of the compilation. The plugin finds the options in the program
and adds them (``plugin/compile/options.c``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.lanes.hlo import Attribute, CompileOptions, LayoutTile, Module, Shape

_OPTIONS = "xla_harness_options"  # the plugin looks for this text and a colon
_GIVEN = re.compile(r"\{([\d,]*)(?::T((?:\([\d,]+\))+))?")  # as {1,0:T(8,128)(2,1)}
_PINNED = 5  # memory space of pinned_host in HLO: S(5)


def note_layouts(
    program: Module, arguments: Sequence[tuple[str, str]], results: Sequence[tuple[str, str]]
) -> None:
    """Note the layouts of a program's arguments and results, in place.

    Args:
        program: is changed, if a layout is given, or something is in pinned memory.
        arguments: the layout mode of each argument, which is ``default``, ``auto`` or a layout such
            as ``{0,1}``, its minor dimension first; and the kind of memory in which it is.
        results: the same of each result.

    Raises:
        ValueError: the CPU's client can't copy an array of that layout to pinned memory.
    """
    if not any(_GIVEN.match(m) or kind == "pinned_host" for m, kind in [*arguments, *results]):
        return
    (entry,) = (c for c in program.computations if c.id == program.entry_computation_id)
    parameters = {i.parameter_number: i for i in entry.instructions if i.opcode == "parameter"}
    options = CompileOptions(argument_layouts=[parameters[n].shape for n in sorted(parameters)])
    (root,) = (i for i in entry.instructions if i.id == entry.root_id)
    result = options.executable_build_options.result_layout
    result.CopyFrom(root.shape)
    for shape, layout in zip(options.argument_layouts, arguments, strict=True):
        _give(shape, *layout)
    for shape, layout in zip(result.tuple_shapes or [result], results, strict=True):
        _give(shape, *layout)
    value = f"{_OPTIONS}:{options.SerializeToString().hex()};"
    program.frontend_attributes.map.append(Attribute(key=_OPTIONS, value=value))


def _give(shape: Shape, mode: str, memory: str) -> None:
    if given := _GIVEN.match(mode):
        shape.layout.minor_to_major[:] = map(int, filter(None, given[1].split(",")))
        tiles = re.findall(r"[\d,]+", given[2] or "")
        shape.layout.tiles.extend(
            LayoutTile(dimensions=map(int, tile.split(","))) for tile in tiles
        )
    if memory == "pinned_host":
        shape.layout.memory_space = _PINNED
        order = shape.layout.minor_to_major
        if shape.layout.tiles and list(order) != sorted(order, reverse=True):
            raise ValueError(
                f"a layout with tiles is row-major in pinned_host here, and {mode} is not:"
                " leave out its tiling, or use lane tpu-aot"
            )
