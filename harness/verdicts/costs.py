"""Find what costs more than on the base, in cases that work on both: the host's calls, or the TPU.

Of several runs of a case the least counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.junit.properties import HOST_CALLS
from harness.junit.result import Result

_MORE = 0.1  # of what it was: counts themselves vary by less than a hundredth
# A step of five calls that takes six is no slower.
_FEWEST = {"calls": 20, "spills": 20, "B": 4096, "flops": 4096}
_FEWEST |= {"registers a thread": 8, "B a thread": 1}
_FEWEST |= {"clients": 1, "compilations": 5, "executions": 5}
# What a compiler made of a case's programs, and its unit.
_COMPILED = {
    "aot_peak_bytes": ("memory", "B"),
    "aot_vmem": ("VMEM of a kernel", "B"),
    "aot_smem": ("SMEM of a kernel", "B"),
    "aot_vector_spills": ("vector registers", "spills"),
    "aot_scalar_spills": ("scalar registers", "spills"),
    "aot_registers": ("registers of a kernel", "registers a thread"),
    "aot_shared": ("shared memory of a kernel", "B"),
    "aot_local": ("spilled by a kernel", "B a thread"),
    "aot_bytes_inside": ("exchanged inside a slice", "B"),
    "aot_bytes_across": ("exchanged between slices", "B"),
    "aot_flops": ("computed on a device", "flops"),
}
# What a case asked of the plugin, and the least rise that is told.
_ASKED = {
    "clients": ("clients", "clients"),
    "compilations": ("compilations", "compilations"),
    "executions": ("executions", "executions"),
}
COSTS = frozenset(_COMPILED) | frozenset(_ASKED)  # and HOST_CALLS with any step


@dataclass(frozen=True, order=True)
class Cost:
    """Something of a case that costs more than it did, in ``unit``: calls, B, spills, s, ..."""

    what: str
    was: float
    now: float
    unit: str

    def __str__(self) -> str:
        more = f" (+{self.now / self.was - 1:.0%})" if self.was else ""
        return f"{self.what}: {self.was:,} {self.unit} -> {self.now:,}{more}"


def slower_steps(base: Sequence[Result], candidate: Sequence[Result]) -> tuple[Cost, ...]:
    """Return the steps, clients, compilations and executions that rose by more than a tenth.

    A step must have risen by 20 calls, and compilations and executions by 5. Another minor version
    of Python calls other functions for the same program, so no step is compared across one.
    """
    was, now = _least(base), _least(candidate)
    steps = {name: name.removeprefix(HOST_CALLS) for name in was if name.startswith(HOST_CALLS)}
    if _python(base) != _python(candidate):
        steps = {}
    return _risen(was, now, {**{n: (step, "calls") for n, step in steps.items()}, **_ASKED})


def larger_programs(base: Sequence[Result], candidate: Sequence[Result]) -> tuple[Cost, ...]:
    """Return what libtpu's programs need more of: a tenth, and 4096 bytes or flops or 20 spills."""
    return _risen(_least(base), _least(candidate), _COMPILED)


def has_costs(result: Result) -> bool:
    """Return whether larger or slower can be said only if the base has run the case, too.

    What a case asked of the plugin is compared where it has, and does not decide whether it does.
    """
    return any(name.startswith(HOST_CALLS) or name in _COMPILED for name in result.properties)


def _is_cost(name: str) -> bool:
    return name.startswith(HOST_CALLS) or name in COSTS


def _risen(
    was: Mapping[str, int], now: Mapping[str, int], numbers: Mapping[str, tuple[str, str]]
) -> tuple[Cost, ...]:
    return tuple(
        Cost(quantity, was[name], now[name], unit)
        for name, (quantity, unit) in numbers.items()
        if name in was
        and name in now
        and now[name] > was[name] * (1 + _MORE)
        and now[name] >= was[name] + _FEWEST[unit]
    )


def _least(runs: Sequence[Result]) -> dict[str, int]:
    least: dict[str, int] = {}
    for run in runs:
        for name, value in run.properties.items():
            if run.works and _is_cost(name) and value.isascii() and value.isdigit():
                least[name] = min(least.get(name, int(value)), int(value))
    return least


def _python(runs: Sequence[Result]) -> list[str]:
    version = next((run.properties.get("python", "") for run in runs), "")
    return version.split(".")[:2]
