"""Level 3: what cases of the suites, run on a plugin, say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import xla_harness

from harness.conformance.answer import CheckAnswer
from harness.conformance.asker import Asker, Servers
from harness.conformance.choose import request_of
from harness.conformance.distribution import suite_run
from harness.conformance.distribution.suite_run import SuiteArea, SuiteRun
from harness.conformance.plugin_check import named
from harness.conformance.plugin_file import NO_FILE, PluginFile
from harness.conformance.probe import probe
from harness.conformance.seen import FaultSeen
from harness.lanes.virtual import library
from harness.model.chosen_plugin import VARIABLE
from harness.model.topology import Topology
from harness.platforms.gpu import GPU
from harness.platforms.tpu import TPU
from harness.sensitivity.planted_suites import measure

OWN = PluginFile("mine", library.PLUGIN)
DEVICES = {
    name: value
    for name, value in library.environment(Topology.parse("4"), TPU).items()
    if name.startswith("VIRTUAL_TPU_") and value
}
CASES = """
import os
import pytest

pytestmark = pytest.mark.lanes("cpu")

def total():
    import jax
    return float(jax.jit(lambda: jax.numpy.arange(4.0).sum())())

def test_right(): assert total() == 6

def test_blind(): assert total() < 100

def test_wrong(): assert total() == 7

def test_crash(): total(); os.abort()

@pytest.mark.topologies(8)
def test_larger(): assert total() == 6

def test_not_here(): pytest.skip("this release of JAX has none")

def test_known(): assert total() == 8

def test_partitioner():
    import jax
    assert total() == 6
    assert not jax.config.jax_use_shardy_partitioner

def test_left_out(): assert total() == 9
"""
KNOWN = """
[[expectation]]
cases = ["suites/spmd_specs/test_jax_few.py::test_known[cpu-4]"]
issue = "jax-ml/jax#1"
reason = "sums are wrong"
signature = "6.0 == 8"
"""
FEW = SuiteArea(
    "gspmd",
    ("suites/spmd_specs/test_jax_few.py",),
    ("left_out", "nothing and right"),
    {"JAX_USE_SHARDY_PARTITIONER": "false"},
)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with few cases, and a plugin of four devices."""
    for name, value in {**DEVICES, VARIABLE: ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(suite_run, "HOME", tmp_path)
    monkeypatch.setattr(suite_run, "AREAS", (FEW,))
    (tmp_path / "pytest.ini").write_text("[pytest]\nxla_expectations = known\n")
    cases, known = tmp_path / FEW.files[0], tmp_path / "known" / "few.toml"
    for file, text in ((cases, CASES), (known, KNOWN)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path


def answers(pattern: str = "*", plugin: PluginFile = OWN) -> dict[str, CheckAnswer]:
    progress = list[tuple[int, int]]()
    request = request_of(f"{plugin.name}={plugin.path}", ())
    about = probe(plugin)
    run = SuiteRun(Asker(plugin, about["client"]), about, request, pattern, "", workers=1)
    by_id = {each.id: each for each in run.answers(lambda *counts: progress.append(counts))}
    assert not progress or progress[-1] == (0, 0)
    assert len(by_id) < 2 or max(progress)[1] >= len(by_id) - 1
    return by_id


@pytest.mark.long
def test_cases_are_answers(clone: Path) -> None:
    assert clone.is_dir()
    by_id = answers()
    begin = "distribution/gspmd/few/test_"
    assert {id_.removeprefix(begin): str(each.result) for id_, each in by_id.items()} == {
        "right[cpu-4]": "conforms",
        "blind[cpu-4]": "conforms",
        "wrong[cpu-4]": "fails",
        "crash[cpu-4]": "fails",
        "larger[cpu-8]": "not measurable here",
        "not_here[cpu-4]": "not measurable here",
        "known[cpu-4]": "not measurable here",
        "partitioner[cpu-4]": "conforms",
    }
    wrong, crash, larger, known = (
        by_id[f"{begin}{name}"]
        for name in ("wrong[cpu-4]", "crash[cpu-4]", "larger[cpu-8]", "known[cpu-4]")
    )
    assert (wrong.kind, crash.kind) == ("failed", "crashed")
    assert "6.0 == 7" in wrong.detail
    assert "SIGABRT" in crash.detail
    case = "suites/spmd_specs/test_jax_few.py::test_wrong[cpu-4]"
    again = f"pytest --lane pjrt --plugin mine={OWN.path} '{case}'"
    assert wrong.program == f"JAX_USE_SHARDY_PARTITIONER=false {again}"
    assert larger.detail == "needs 8, here 4"
    assert known.detail.startswith("known of this JAX: jax-ml/jax#1\n")


def test_jax_that_refuses_the_plugin_is_one_answer(clone: Path) -> None:
    """PJRT 0.81 takes no options of an older header, and the JAX of this environment has one."""
    assert clone.is_dir()
    by_id = answers(plugin=PluginFile("xla_cpu", library.backend_path()))
    assert list(by_id) == ["distribution/session/started"]
    (answer,) = by_id.values()
    assert str(answer.result) == "not measurable here"
    assert "refused by JAX" in answer.detail


@pytest.mark.long
def test_planted_faults_are_counted(clone: Path) -> None:
    assert clone.is_dir()
    about = probe(OWN)
    request = request_of(f"{OWN.name}={OWN.path}", ())
    run = SuiteRun(Asker(OWN, about["client"]), about, request, "*", "", workers=1)
    noted = list[FaultSeen]()
    results = measure(run, (1, 6), lambda _: None, noted.append)
    assert noted == results
    planted = [each for each in results if each.is_planted]
    begin = "distribution/gspmd/few/test_"
    assert {each.check for each in planted} >= {f"{begin}right[cpu-4]", ""}
    unseen = {each.fault.partition(": ")[2] for each in planted if not each.check}
    assert unseen == {f"{begin}blind[cpu-4]"}
    assert any("maximum" in line for each in planted for line in each.difference)


def test_without_the_suites(clone: Path) -> None:
    (clone / FEW.files[0]).unlink()
    (clone / FEW.files[0]).parent.rmdir()
    (answer,) = answers().values()
    assert answer.detail == "the suites are in a clone of xla-harness only"


@pytest.mark.long
def test_session_that_has_no_answer(clone: Path) -> None:
    (clone / FEW.files[0]).write_text("raise SystemExit(3)")
    (answer,) = answers().values()
    assert (answer.id, str(answer.result)) == (
        "distribution/gspmd/started",
        "not measurable here",
    )
    assert "SystemExit" in answer.output


@pytest.mark.long
def test_cases_of_the_suites(tmp_path: Path) -> None:
    """The command, its files and the suites themselves."""
    data, report, badge = tmp_path / "a.json", tmp_path / "a.xml", tmp_path / "b.json"
    case = "distribution/shardy/history/test_concatenate_over_one_of_two_axes[cpu-4]"
    given = "conformance", f"mine={OWN.path}", "--check", case, "--json", data
    ran = xla_harness(*given, "--junit", report, "--badge", badge, env=environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answer = json.loads(data.read_text())
    assert [(each["id"], each["result"]) for each in answer["checks"]] == [(case, "conforms")]
    assert answer["levels"]["3"]["conforms"] == 1
    assert "L3 distribution" in ran.stdout
    assert json.loads(badge.read_text())["message"] == "1 of 1 check, L3"
    assert "L3 distribution" in report.read_text()


@pytest.mark.long
def test_suites_on_jaxlibs_own_client(clone: Path) -> None:
    assert clone.is_dir()
    asker = Asker(PluginFile("cpu", NO_FILE))
    pattern = "distribution/gspmd/few/test_[rw]*"
    run = SuiteRun(asker, {}, (), pattern, "", workers=1)
    right, wrong = sorted(run.answers(lambda *_: None), key=lambda each: each.id)
    assert (str(right.result), str(wrong.result)) == ("conforms", "fails")
    assert "pytest --lane cpu 'suites/spmd_specs/test_jax_few.py::test_wrong" in wrong.program


def together(plugin: PluginFile, name: str, *, ends: int | None = None) -> CheckAnswer:
    """Return the answer of two processes; the process numbered ``ends`` ends at once."""
    check = named(f"distribution/process/{name}")
    asker = Asker(plugin, deadline=60)
    if ends is None:
        with Servers(2) as servers:
            return asker.together(check, servers)
    with Servers(2) as servers:
        ask = servers.ask
        servers.ask = lambda question: (  # type: ignore[method-assign]
            "signal 9" if question["place"][2] == ends else ask(question)
        )
        return asker.together(check, servers)


def test_processes_are_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The virtual GPUs are told their place by JAX, as those of a plugin are."""
    for name, value in library.environment(Topology.parse("h100:4"), GPU).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    answer = together(PluginFile("cuda", library.PLUGIN), "collectives")
    assert (str(answer.result), answer.detail) == ("conforms", "")


@pytest.mark.long
def test_process_that_ends_is_the_jobs_failure() -> None:
    answer = together(PluginFile("cpu", NO_FILE), "devices", ends=1)
    assert (str(answer.result), answer.kind) == ("fails", "crashed")
    assert answer.detail.startswith("process 1: died of SIGKILL")


def test_plugin_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in DEVICES.items():
        monkeypatch.setenv(name, value)
    answer = together(OWN, "devices")
    assert str(answer.result) == "unsupported"
    assert "a job of several processes: its devices are those of one" in answer.detail


def test_bad_input() -> None:
    wrong = "conformance", f"mine={OWN.path}", "--check", "distribution/colectives/*"
    ran = xla_harness(*wrong, env=environment())
    assert ran.returncode == 2
    assert "--check 'distribution/colectives/*'" in ran.stderr
    assert "distribution/collectives/" in ran.stderr
    level = "conformance", f"mine={OWN.path}", "--levels", "3"
    ran = xla_harness(*level, "--faults", "2", "--stack", "jax-0.12.0.1", env=environment())
    assert ran.returncode == 2
    assert "--faults: expected no --stack" in ran.stderr


def environment() -> dict[str, str]:
    import os

    return {**os.environ, **DEVICES}
