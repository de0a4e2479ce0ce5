"""How much the checks see: faults planted in front of a plugin that conforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.conformance.answer import CheckAnswer
from harness.conformance.asker import Asker, Servers
from harness.conformance.c_api.api import OF_ERRORS
from harness.conformance.c_api.planted import functions_of, may_be_lacking
from harness.conformance.plugin_check import PLANTED, Conformity, PluginCheck

_DEADLINE = 5.0  # seconds: a check that takes longer was hung by the fault


@dataclass(frozen=True)
class FaultSeen:
    """What became of one fault: the check that saw it, or "" for none.

    ``is_planted`` says whether any check called what the fault changes, so that it was changed;
    ``difference`` is how the program of a fault that was not seen differs from the original.
    """

    fault: str
    check: str
    is_planted: bool
    difference: Sequence[str] = ()


def measure(
    asker: Asker,
    checks: Mapping[str, PluginCheck],
    faults: Sequence[str],
    servers: Servers,
    note: Callable[[FaultSeen], None] = lambda _: None,
) -> Sequence[FaultSeen]:
    """Plant each fault alone, and ask the checks that call the function it changes."""
    plain = replace(asker, keeps_steps=True)
    answers = [a for a in plain.all(checks.values(), servers) if a.result is Conformity.CONFORMS]
    results = list[FaultSeen]()
    for fault in faults:
        results.append(
            _one(replace(plain, fault=fault, deadline=_DEADLINE), checks, answers, servers)
        )
        note(results[-1])
    return results


def _one(
    asker: Asker,
    checks: Mapping[str, PluginCheck],
    answers: Sequence[CheckAnswer],
    servers: Servers,
) -> FaultSeen:
    """Ask the checks that call the function, those that do little besides first."""
    functions = functions_of(asker.fault)
    seen = {Conformity.FAILS} | ({Conformity.UNSUPPORTED} if may_be_lacking(asker.fault) else set())
    relevant = [a for a in answers if not functions.isdisjoint((*a.steps, *OF_ERRORS))]
    relevant.sort(key=lambda a: (not any(f in a.id for f in functions), len(a.steps)))
    planted = False
    for start in range(0, len(relevant), 2 * servers.count):
        batch = [checks[a.id] for a in relevant[start : start + 2 * servers.count]]
        for answer in asker.all(batch, servers):
            planted = planted or PLANTED in answer.steps
            if answer.result in seen and PLANTED in answer.steps:
                return FaultSeen(asker.fault, answer.id, is_planted=True)
    return FaultSeen(asker.fault, "", planted)
