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
from harness.sensitivity.fault import Compared, Fault, Recorded
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
    changed = folder / "planted"
    original = folder.joinpath(fault.program).read_bytes()
    changed.write_bytes(planted(json.loads(fault.text(folder)), original))
    (answer,) = replace(asker, fault=str(changed)).all([check], servers)
    failed = answer.result is Conformity.FAILS
    refused = failed and "PJRT_Client_Compile returned" in answer.detail
    return judged(fault, folder, is_planted=not refused, failed=failed)


def judged(fault: Fault, folder: Path, *, is_planted: bool, failed: bool) -> FaultSeen:
    """Return what became of a fault: one that no check sees may change no result at all."""
    name = f"{fault.operator} {fault.opcode} {fault.place}: {fault.case}"
    if failed or not is_planted:
        return FaultSeen(name, fault.case if is_planted else "", is_planted)
    command = [sys.executable, "-m", "harness.sensitivity.equivalence"]
    line = f"{fault.text(folder)}\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    if not done.stdout:  # the fault ended the comparison
        return FaultSeen(name, "", is_planted=True)
    comparison = Compared(**json.loads(done.stdout.splitlines()[-1]))
    changes = comparison.equivalent is not True
    return FaultSeen(name, "", changes, comparison.difference if changes else ())
