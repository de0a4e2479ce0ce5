"""How much the JAX programs of conformance see: faults planted where JAX calls its compiler.

That is in the check's own process, so every plugin that conforms can be asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.conformance.asker import Asker, Servers
from harness.conformance.plugin_check import Conformity, PluginCheck
from harness.conformance.seen import FaultSeen
from harness.lanes import events
from harness.sensitivity.compilers import attach_to_jax
from harness.sensitivity.fault import (
    FAULT_VARIABLE,
    RECORD_VARIABLE,
    STALE,
    Fault,
    case_file,
    programs_of,
)
from harness.sensitivity.operators import OPERATORS
from harness.sensitivity.planted_programs import judged
from harness.sensitivity.sample import Sample, planned


def attach(check: str, fault: str) -> None:
    """Plant a fault in what this process compiles, or keep its programs if it names a folder."""
    if fault.startswith("{"):
        os.environ[FAULT_VARIABLE] = fault
        log = _log(json.loads(fault))
    else:
        os.environ[RECORD_VARIABLE] = str(case_file(Path(fault), check))
        log = Path(fault, "events")
    os.environ[events.VARIABLE] = str(log)
    attach_to_jax()


def measure(
    asker: Asker,
    checks: Mapping[str, PluginCheck],
    sample: tuple[int, int],
    servers: Servers,
    note: Callable[[FaultSeen], None],
) -> Sequence[FaultSeen]:
    """Plant faults, each in a program of one check that conforms, and ask it again.

    All programs of the first run go to the compiler as HLO, too. ``sample`` and what counts are
    those of the operators' checks.
    """
    with TemporaryDirectory() as name, ThreadPoolExecutor(servers.count) as pool:
        folder = Path(name)
        answers = replace(asker, fault=name).all(checks.values(), servers)
        conforming = sorted(a.id for a in answers if a.result is Conformity.CONFORMS)
        programs = {id_: programs_of(folder, id_) for id_ in conforming}
        areas = {id_: id_.split("/")[1] for id_ in programs}
        faults = planned(areas, programs, (*OPERATORS, STALE), Sample(*sample))
        results = []
        for seen in pool.map(lambda each: _seen(asker, checks, each, folder, servers), faults):
            results.append(seen)
            note(seen)
        return results


def _seen(
    asker: Asker, checks: Mapping[str, PluginCheck], fault: Fault, folder: Path, servers: Servers
) -> FaultSeen:
    text = fault.text(folder)
    log = events.EventLog(_log(json.loads(text)))
    (answer,) = replace(asker, fault=text).all([checks[fault.case]], servers)
    is_planted = bool(log.read().planted["faults_planted"])
    return judged(fault, folder, is_planted=is_planted, failed=answer.result is Conformity.FAILS)


def _log(fault: Mapping[str, object]) -> Path:
    return Path(str(fault["folder"]), f"fault-{fault['number']}.events")
