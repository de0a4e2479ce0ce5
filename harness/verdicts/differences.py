"""Compare the facts of a case that works on both sides: what differs on the candidate.

Every fact that a case records is compared here or in :mod:`harness.verdicts.costs`, or stands in
``NOT_COMPARED`` with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.junit.result import Result

_PROGRAMS = "aot_programs_compiled"
_EXCHANGES = {
    "inside": "collectives inside a slice",
    "across": "exchanges between slices",
}
# Any change of these is told, in either direction.
EXACT: Mapping[str, str] = {
    "aot_programs": "programs compiled for devices",
    "aot_kernels": "Pallas kernels compiled for devices",
    "aot_changed": "changed before the compiler took it",
    "aot_communicators": "communicators of a step",
    "aot_options": "options that the lane compiles with",
    _PROGRAMS: "what is exchanged, and how often",
    "discoveries": "discoveries",
    "communicators": "communicators of a job",
    "pallas_kernels": "Pallas kernels",
    "pallas_faults": "faults of Pallas kernels",
    "options_left_out": "options without effect on virtual devices",
}
_ANSWER = "it is a part of the answer, which is compared"
_CASE = "it says which case it is and how it ran, not what the case did"
_TIME = "times on shared machines vary by tens of per cent"
_COUNTED = f"{_PROGRAMS} lists each, which is compared"
_EMULATED = "it says how a virtual device is emulated, not what the case asked of it"
_PLANTED = "it is there only while sensitivity is measured"
_MERGED = "it is there only in reports of several workers, merged"
NOT_COMPARED: Mapping[str, str] = {
    **dict.fromkeys(("expectation", "expected", "expected_by", "actual", "unproven"), _ANSWER),
    **dict.fromkeys(("reused", "reused_wrongly"), "it says when the result was measured"),
    "not_executed": "the answer counts the passes of the candidate that executed nothing",
    **dict.fromkeys(("outcome", "outcome_detail", "failure", "signal"), _ANSWER),
    **dict.fromkeys(("layer", "signature"), _ANSWER),
    **dict.fromkeys(("id", "area", "lane", "topology", "framework", "upstream"), _CASE),
    **dict.fromkeys(("isolation", "deadline", "modified"), _CASE),
    **dict.fromkeys(("card", "driver", "plugin"), _CASE),
    **dict.fromkeys(("plugin_api", "plugin_says"), _CASE),
    **dict.fromkeys(("conformity", "conformity_level"), _ANSWER),
    **dict.fromkeys(("plugin_attributes", "plugin_extensions"), _CASE),
    "aot_not_computed": _EMULATED,
    **dict.fromkeys(("duration_setup", "duration_runtime_start"), _TIME),
    **dict.fromkeys(("duration_body", "duration_isolation"), _TIME),
    **dict.fromkeys(("aot_collectives", "aot_transfers"), _COUNTED),
    **dict.fromkeys(("pallas_interpreted", "pallas_tpu_interpreted", "rewritten"), _EMULATED),
    **dict.fromkeys(("faults_planted", "faults_executed", "faults_refused"), _PLANTED),
    **dict.fromkeys(("workers", "skipped_on"), _MERGED),
}


@dataclass(frozen=True)
class Difference:
    """Fact of a case that is different on the candidate."""

    what: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.was or 'none'} -> {self.now or 'none'}"


def differences(base: Sequence[Result], candidate: Sequence[Result]) -> tuple[Difference, ...]:
    """Return the facts in which no run of one side agrees with a run of the other.

    A fact that only one side records is not compared: an older harness or libtpu may not say it.
    The exceptions are those that are left out when they are empty.
    """
    was, now = _works(base), _works(candidate)
    differing = []
    for name, fact in EXACT.items():
        if name == _PROGRAMS:
            for key, exchanged in _EXCHANGES.items():
                differing += _differing(exchanged, was, now, partial(_exchanges, key))
        elif _is_recorded(name, was) and _is_recorded(name, now):
            differing += _differing(fact, was, now, partial(_listed, name))
    return tuple(differing)


def compares_on_base(result: Result) -> bool:
    """Return whether a result has facts for which the base has to run the case, too.

    These are what libtpu has compiled. What the virtual TPU counts is compared where both sides
    have run the case, and does not decide whether the base does.
    """
    return _PROGRAMS in result.properties


def _works(runs: Sequence[Result]) -> list[Mapping[str, str]]:
    return [run.properties for run in runs if run.works]


def _is_recorded(name: str, runs: Iterable[Mapping[str, str]]) -> bool:
    """Return whether the runs' lane records the fact, which may be empty."""
    mark = _PROGRAMS if name.startswith("aot_") else "executions"
    return all(mark in properties for properties in runs)


def _listed(name: str, properties: Mapping[str, str]) -> Counter[str]:
    return Counter(part for part in properties.get(name, "").split(", ") if part)


def _exchanges(key: str, properties: Mapping[str, str]) -> Counter[str]:
    """Count what a case's programs exchange; nothing for what can't be read."""
    try:
        programs = json.loads(properties.get(_PROGRAMS, "[]"))
        texts = [text for program in programs for text in program[key]]
    except (ValueError, KeyError, TypeError):
        return Counter()
    counts = Counter[str]()
    for text in texts:
        count, times, rest = text.partition(" x ")
        counts[rest if times else text] += int(count) if times and count.isdecimal() else 1
    return counts


def _differing(
    fact: str,
    base: Sequence[Mapping[str, str]],
    candidate: Sequence[Mapping[str, str]],
    of: Callable[[Mapping[str, str]], Counter[str]],
) -> list[Difference]:
    was, now = [of(properties) for properties in base], [of(p) for p in candidate]
    if not was or not now or any(counts in now for counts in was):
        return []
    gone, new = was[0] - now[0], now[0] - was[0]
    return [Difference(fact, _text(gone), _text(new))]


def _text(counts: Counter[str]) -> str:
    lines = (text if count == 1 else f"{count} x {text}" for text, count in sorted(counts.items()))
    return "; ".join(lines)
