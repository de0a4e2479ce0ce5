"""How much the checks of operators see: faults planted in the programs that they compile.

The faults are in HLO, which the plugin then compiles in place of StableHLO, so the plugin has to
accept HLO, and jaxlib has to be installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.conformance.asker import Asker, Servers
from harness.conformance.c_api.api import CApi
from harness.conformance.c_api.client import Client
from harness.conformance.plugin_check import Conformity, PluginCheck
from harness.conformance.seen import FaultSeen
from harness.lanes.virtual.lowering import hlo_of
from harness.sensitivity.fault import Fault, Recorded
from harness.sensitivity.operators import OPERATORS, planted
from harness.sensitivity.program import EditedModule, digest
from harness.sensitivity.sample import Sample, planned


def measure(
    asker: Asker,
    checks: Mapping[str, PluginCheck],
    sample: tuple[int, int],
    servers: Servers,
    note: Callable[[FaultSeen], None],
) -> Sequence[FaultSeen]:
    """Plant faults, each in the program of one check that conforms, and ask it again.

    ``sample`` is the seed that chooses them, and how many.
    A fault that the compiler refuses, and one that is not seen and changes no result of random
    operands either, count as not planted.
    """
    plain = replace(asker, keeps_steps=True)
    answers = [a for a in plain.all(checks.values(), servers) if a.result is Conformity.CONFORMS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = Client(CApi(asker.plugin.path)).compile_options()
        programs = {a.id: [_recorded(a.program, folder, options)] for a in answers if a.program}
        areas = {id_: id_.split("/")[1] for id_ in programs}
        results = []
        for fault in planned(areas, programs, list(OPERATORS), Sample(*sample)):
            results.append(_seen(plain, checks[fault.case], fault, folder, servers))
            note(results[-1])
        return results


def _recorded(program: str, folder: Path, options: bytes) -> Recorded:
    """Keep a program as HLO, with its compile options; return where faults can be planted."""
    serialized = hlo_of(program.partition("\n// %0 = ")[0])
    name = digest(serialized)
    folder.joinpath(name).write_bytes(serialized)
    folder.joinpath(f"{name}.options").write_bytes(options)
    module = EditedModule(serialized)
    places = {
        each.name: [instruction.opcode for instruction, _ in each.places(module)]
        for each in OPERATORS.values()
    }
    return Recorded(name, places, module.signature(), "operators")


def _seen(
    asker: Asker, check: PluginCheck, fault: Fault, folder: Path, servers: Servers
) -> FaultSeen:
    name = f"{fault.operator} {fault.opcode} {fault.place}: {fault.case}"
    text = fault.text(folder)
    changed = folder / "planted"
    changed.write_bytes(planted(json.loads(text), folder.joinpath(fault.program).read_bytes()))
    (answer,) = replace(asker, fault=str(changed)).all([check], servers)
    if answer.result is Conformity.FAILS:
        refused = "PJRT_Client_Compile returned" in answer.detail
        return FaultSeen(name, "" if refused else check.id, is_planted=not refused)
    return FaultSeen(name, "", is_planted=_changes(text))


def _changes(fault: str) -> bool:
    """Return whether a fault changes the results of its program, as far as can be known."""
    command = [sys.executable, "-m", "harness.sensitivity.equivalence"]
    done = subprocess.run(command, input=f"{fault}\n", capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return not lines or json.loads(lines[-1])["equivalent"] is not True
