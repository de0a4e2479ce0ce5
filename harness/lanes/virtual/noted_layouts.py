"""Layouts of a program's arguments and results, which StableHLO has in attributes and HLO has not.

PJRT takes those of HLO as options of the compilation. The plugin finds the options in the program
and adds them (``plugin/compile/options.c``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.lanes.hlo import Attribute, CompileOptions, Module, Shape

_OPTIONS = "xla_harness_options"  # the plugin looks for this text and a colon
_GIVEN = re.compile(r"\{([\d,]*)")


def note_layouts(program: Module, arguments: Sequence[str], results: Sequence[str]) -> None:
    """Note the layouts of a program's arguments and results, in place.

    Args:
        program: is changed, if a layout is given.
        arguments: the layout mode of each argument: ``default``, ``auto`` or a layout such as
            ``{0,1}``, its minor dimension first.
        results: the same of each result.
    """
    if not any(map(_GIVEN.match, [*arguments, *results])):
        return
    (entry,) = (c for c in program.computations if c.id == program.entry_computation_id)
    parameters = {i.parameter_number: i for i in entry.instructions if i.opcode == "parameter"}
    options = CompileOptions(argument_layouts=[parameters[n].shape for n in sorted(parameters)])
    (root,) = (i for i in entry.instructions if i.id == entry.root_id)
    result = options.executable_build_options.result_layout
    result.CopyFrom(root.shape)
    for shape, mode in zip(options.argument_layouts, arguments, strict=True):
        _give(shape, mode)
    for shape, mode in zip(result.tuple_shapes or [result], results, strict=True):
        _give(shape, mode)
    value = f"{_OPTIONS}:{options.SerializeToString().hex()};"
    program.frontend_attributes.map.append(Attribute(key=_OPTIONS, value=value))


def _give(shape: Shape, mode: str) -> None:
    if given := _GIVEN.match(mode):
        shape.layout.minor_to_major[:] = map(int, filter(None, given[1].split(",")))
