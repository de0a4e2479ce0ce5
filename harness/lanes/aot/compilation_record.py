"""Summaries of compilations, as a case's events, JUnit and golden files record them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.lanes.events import Events

if TYPE_CHECKING:
    from harness.lanes.aot.compiler import Compilation
    from harness.lanes.aot.cubin import KernelUse
    from harness.lanes.aot.optimized import CompiledCollective, Groups, Transfer

EVENT = "aot"  # of a case's log: one program was compiled
REFUSED = "aot_refused"  # one program was given to the compiler, and refused
STAND_IN = "stand_in"  # a program ran whose results are zeros, since nothing here computes it
LEFT = "aot_left"  # processes whose programs were not given to the compiler
PROPERTY = "aot_programs_compiled"  # the summaries of a case's programs, as JSON
Summary = dict[str, Any]
# A summary's keys: lists of texts, sums over a step, bytes on one device, and of the kernels the
# largest's use of a TensorCore or GPU and the spills of all. Those are left out if not known.
TEXTS = ("inside", "across", "operations", "options", "changed")
SUMS = ("kernels", "bytes_inside", "bytes_across", "flops")
MEMORY = ("arguments", "outputs", "temporaries", "code")
GPU_KERNELS = ("registers", "shared", "local")
ON_CHIP = ("vmem", "smem", *GPU_KERNELS)
SPILLS = ("vector_spills", "scalar_spills")
NUMBERS = (*SUMS, "communicators", *MEMORY, *ON_CHIP, *SPILLS)


def summary(compilation: Compilation) -> Summary:
    """Return the recorded facts: texts for what is exchanged, integers for every amount."""
    program, memory = compilation.program, compilation.memory
    return {
        "inside": list(_counted(map(_collective, program.collectives))),
        "across": list(_counted(map(_transfer, program.transfers))),
        **_of_gpus(compilation),
        "kernels": program.kernels,
        "bytes_inside": program.bytes_inside,
        "bytes_across": program.bytes_across,
        "flops": compilation.flops,
        "arguments": memory.arguments,
        "outputs": memory.outputs,
        "temporaries": memory.temporaries,
        "code": memory.code,
        "vmem": program.vmem,
        **(asdict(compilation.on_chip) if compilation.on_chip else {}),
        "changed": list(compilation.changed),
    }


def _of_gpus(compilation: Compilation) -> Summary:
    """Return what XLA's GPU compiler says besides, and the options that it was given."""
    program = compilation.program
    facts = {
        "operations": list(_counted(iter(program.operations))),
        "communicators": len(program.communicators),
        "options": [f"{name}={value}" for name, value in compilation.options.items()],
    }
    return {name: fact for name, fact in facts.items() if fact} | _use(compilation.kernel_use)


def _use(kernels: Mapping[str, KernelUse]) -> Summary:
    """Return the largest of what GPU kernels use, and what each does."""
    uses = [asdict(use) for use in kernels.values()]
    largest = {
        name: max(use[name] for use in uses)
        for name in GPU_KERNELS
        if uses and all(use[name] is not None for use in uses)
    }
    return {**largest, "uses": {name: asdict(use) for name, use in kernels.items()}} if uses else {}


def summaries(events: Events) -> list[Summary]:
    """Return the summaries of the programs that a case compiled, in order."""
    return [dict(event.facts) for event in events.of(EVENT)]


def facts(events: Events) -> Mapping[str, str]:
    """Return a case's programs as JUnit properties: sums, and the largest of their memory."""
    programs = summaries(events)
    numbers = {
        "aot_programs": len(programs),
        "aot_collectives": sum(_count(text) for p in programs for text in p["inside"]),
        "aot_transfers": sum(_count(text) for p in programs for text in p["across"]),
        **{f"aot_{name}": sum(p[name] for p in programs) for name in SUMS},
        "aot_communicators": max((p.get("communicators", 0) for p in programs), default=0),
        "aot_peak_bytes": max((sum(p[name] for name in MEMORY) for p in programs), default=0),
    }
    texts = {
        "aot_not_computed": str(len(events.of(STAND_IN)) or ""),
        "aot_changed": "; ".join(sorted({text for p in programs for text in p["changed"]})),
        "aot_options": "; ".join(sorted({t for p in programs for t in p.get("options", ())})),
        PROPERTY: json.dumps(programs, separators=(",", ":")),
    }
    properties = {
        **{name: str(number) for name, number in numbers.items()},
        **_on_chip(programs),
        **texts,
    }
    return properties if programs else dict.fromkeys(properties, "")


def _on_chip(programs: list[Summary]) -> dict[str, str]:
    """Empty where the compiler does not say it of each program."""
    totals = {}
    for name in (*ON_CHIP, *SPILLS):
        amounts = [program[name] for program in programs if name in program]
        total = max(amounts, default=0) if name in ON_CHIP else sum(amounts)
        totals[f"aot_{name}"] = str(total) if len(amounts) == len(programs) else ""
    return totals


def _counted(texts: Iterator[str]) -> Iterator[str]:
    for text, count in sorted(Counter(texts).items()):
        yield text if count == 1 else f"{count} x {text}"


def _count(text: str) -> int:
    """Return the count in a line that :func:`_counted` yielded."""
    count, times, _ = text.partition(" x ")
    return int(count) if times else 1


def _collective(collective: CompiledCollective) -> str:
    groups = _groups(collective.groups, pairs=collective.kind == "collective-permute")
    text = f"{collective.kind} of {collective.bytes} B over {groups}"
    return f"{text}{_times(collective.count)}{_overlapped(collective)}"


def _transfer(transfer: Transfer) -> str:
    text = f"{transfer.kind} of {transfer.sent} B to {transfer.received} B"
    groups = _groups(transfer.groups, pairs=transfer.kind == "ONE_TO_ONE")
    return f"{text} over {groups}{_times(transfer.count)}{_overlapped(transfer)}"


def _overlapped(exchange: CompiledCollective | Transfer) -> str:
    return ", asynchronous" if exchange.asynchronous else ""


def _times(count: int | None) -> str:
    return "" if count == 1 else f", {'?' if count is None else count} times a step"


def _groups(groups: Groups, *, pairs: bool) -> str:
    if pairs:
        return " ".join(f"{source}->{target}" for source, target in groups)
    return " ".join(f"{{{_ranks(group)}}}" for group in groups) or "all"


def _ranks(group: tuple[int, ...]) -> str:
    """``0-3`` for consecutive ranks, ``0-1016:8`` for many that are as far apart, or one by one."""
    steps = {b - a for a, b in pairwise(group)}
    if len(group) > 2 and steps == {1}:
        return f"{group[0]}-{group[-1]}"
    if len(group) > 4 and len(steps) == 1 and min(steps) > 1:
        return f"{group[0]}-{group[-1]}:{steps.pop()}"
    return ",".join(map(str, group))
