"""Collectives that JAX starts and ends by custom calls, from JAX 0.12 on: done at once.

The call that starts one says in an attribute what it is, and has its result already; the one that
ends it returns that.
https://github.com/jax-ml/jax/blob/main/jax/_src/lax/parallel.py (_emit_async_start_custom_call)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.lanes.hlo import Instruction, Module
from harness.lanes.virtual.inserted import leave_out, make

ATTRIBUTE = "async_collective_config"
_START, _DONE = "-start", "-done"
# What the operation of each target calls its dimension.
_DIMENSIONS = {
    "all-gather": "all_gather_dimension",
    "all-reduce": "",
    "all-to-all": "split_dimension",
    "collective-permute": "",
    "reduce-scatter": "scatter_dimension",
}


def do_at_once(module: Module) -> list[str]:
    """Make each collective of the module what it starts, in place, and return a name for each.

    An all-to-all from one dimension to another is left for ``rewrites``. Raises ValueError for a
    collective that is not known here.
    """
    names = []
    for computation in module.computations:
        same: dict[int, int] = {}
        started: set[int] = set()
        for instruction in computation.instructions:
            target = instruction.custom_call_target
            if target.endswith(_START) and (config := config_of(instruction)):
                started.add(instruction.id)
                if config.get("concat_dimension") == config.get("split_dimension"):
                    make_collective(instruction, config)
                    names.append("asynchronous collective")
            elif target.endswith(_DONE) and set(instruction.operand_ids) <= started:
                (same[instruction.id],) = instruction.operand_ids
        leave_out(computation, same)
    return names


def config_of(instruction: Instruction) -> Mapping[str, Any]:
    """Return what JAX says of the collective that a custom call starts; empty for another one."""
    attributes = {a.key: a.value for a in instruction.frontend_attributes.map}
    config: Mapping[str, Any] = json.loads(attributes.get(ATTRIBUTE, "{}"))
    return config


def make_collective(instruction: Instruction, config: Mapping[str, Any]) -> None:
    """Make a collective of the custom call that starts it, in place."""
    opcode = instruction.custom_call_target.removesuffix(_START)
    if opcode not in _DIMENSIONS:
        raise ValueError(f"an asynchronous {opcode} is not known here")
    reducers = list(instruction.called_computation_ids)
    make(instruction, opcode, list(instruction.operand_ids))
    instruction.called_computation_ids.extend(reducers)
    if dimension := _DIMENSIONS[opcode]:
        instruction.dimensions.append(config[dimension])
    if channel := config.get("channel_id"):
        instruction.channel_id = channel
    if config.get("use_global_device_ids"):
        instruction.use_global_device_ids = True
    for group in config.get("replica_groups", ()):
        instruction.replica_groups.add().replica_ids.extend(group)
    for source, target in config.get("permutation", ()):
        instruction.source_target_pairs.add(source=source, target=target)
