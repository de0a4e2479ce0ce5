"""Level 2: JAX programs on OpenXLA's CPU plugin, and what they see."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import run_program, xla_harness

from harness.conformance.asker import Asker, Servers
from harness.conformance.jax_programs import PLANNED, VERSION
from harness.conformance.jax_programs.agreement import agree
from harness.conformance.jax_programs.compared_program import JaxSubject, program, source
from harness.conformance.jax_programs.random_bit_checks import threefry
from harness.conformance.plugin_check import (
    LEVELS,
    Conformity,
    NonconformanceError,
    NotMeasurableError,
    UnsupportedError,
    named,
    of,
)
from harness.conformance.plugin_file import NO_FILE, PluginFile
from harness.conformance.seen import FaultSeen
from harness.lanes.virtual import library
from harness.sensitivity.planted_jax_programs import measure

PROGRAMS = of(LEVELS[2])


def test_version_is_of_this_list() -> None:
    """Another list needs another version: change both lines together."""
    digest = hashlib.sha256("\n".join(PROGRAMS).encode()).hexdigest()[:8]
    assert (VERSION, len(PROGRAMS), digest) == ("2026.11", 90, "c25616e9")


def test_planned_apis_have_no_program() -> None:
    functions: list[Any] = [each.function for each in PROGRAMS.values()]
    texts = "\n".join(source(f.__wrapped__) for f in functions if hasattr(f, "__wrapped__"))
    # With more words, what is planned may be a use of an API that has a program.
    apis = [word for area in PLANNED.values() for word in area if " " not in word]
    assert [api for api in apis if re.search(rf"\b{re.escape(api)}\b", texts)] == []


def test_jax_that_refuses_the_plugin_is_one_failure() -> None:
    """PJRT 0.81 takes no options of an older header, and the JAX of this environment has one."""
    asker = Asker(PluginFile("xla_cpu", library.backend_path()), deadline=60)
    chosen = [
        PROGRAMS[f"jax_programs/{name}"]
        for name in ("client_in_jax/started", "transformation/grad")
    ]
    with Servers(1) as servers:
        first, second = sorted(asker.all(chosen, servers), key=lambda each: each.id)
    assert first.result is Conformity.FAILS
    assert "refused by JAX" in first.detail
    assert second.result is Conformity.NOT_MEASURABLE
    assert "Unexpected PJRT_ExecuteOptions size" in second.detail


def test_jaxlibs_own_client_has_programs_but_no_table() -> None:
    chosen = "c_api/error/message", "jax_programs/client_in_jax/started"
    asker = Asker(PluginFile("cpu", NO_FILE), deadline=60)
    with Servers(1) as servers:
        first, second = sorted(asker.all([named(each) for each in chosen], servers), key=str)
    assert first.result is Conformity.NOT_MEASURABLE
    assert first.detail == "jaxlib's own client has no table"
    assert second.result is Conformity.CONFORMS, second.detail
    ran = xla_harness("conformance", "cpu", "--check", chosen[1])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("cpu: jaxlib's own client\n")
    ran = xla_harness("conformance", "cpu", "--faults", "1")
    assert ran.returncode == 2
    assert "expected --levels 2 or 3 with --faults" in ran.stderr


def test_planted_faults_are_seen() -> None:
    chosen = {id_: named(id_) for id_ in ("jax_programs/transformation/grad",)}
    noted = list[FaultSeen]()
    with Servers(2) as servers:
        asker = Asker(PluginFile("cpu", NO_FILE), deadline=60)
        results = measure(asker, chosen, (1, 6), servers, noted.append)
    assert noted == results
    planted = [each for each in results if each.is_planted]
    assert len(planted) > 3
    assert [each for each in planted if not each.check] == []


class InProcess(JaxSubject):
    """JAX's own client of this process."""

    def start(self) -> Any:
        import jax

        return jax.devices("cpu")[0].client


SUBJECT = InProcess("cpu", "", {}, "")


@pytest.mark.parametrize("name", [n for n in PROGRAMS if "client_in_jax" not in n])
def test_programs_agree_with_the_oracle_on_jaxs_own_client(name: str) -> None:
    try:
        PROGRAMS[name](SUBJECT)
    except (NotMeasurableError, UnsupportedError) as error:
        pytest.skip(str(error))


def ask(function: Any, **options: Any) -> None:
    program(**options)(function)(SUBJECT)


def test_wrong_number_is_seen() -> None:
    def wrong() -> Iterator[Any]:
        import jax.numpy as jnp

        yield jnp.arange(3.0), np.array([0, 1, 2.01])

    with pytest.raises(NonconformanceError, match=r"2\.01"):
        ask(wrong)


def test_program_that_never_used_the_plugin_does_not_pass() -> None:
    def idle() -> Iterator[Any]:
        yield np.arange(3), np.arange(3)

    with pytest.raises(NonconformanceError, match="no result was on the plugin's devices"):
        ask(idle)


def test_only_what_is_optional_may_lack() -> None:
    def lacking() -> Iterator[Any]:
        raise RuntimeError("UNIMPLEMENTED: callbacks")
        yield

    with pytest.raises(UnsupportedError, match="host callbacks: RuntimeError: UNIMPLEMENTED"):
        ask(lacking, optional="host callbacks")
    with pytest.raises(NonconformanceError, match="UNIMPLEMENTED"):
        ask(lacking)


def test_more_devices_than_there_are() -> None:
    with pytest.raises(NotMeasurableError, match="needs 4096 devices"):
        ask(lambda: iter(()), devices=4096)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.zeros((2, 1)), np.zeros(2)),
        ((np.zeros(2),), np.zeros(2)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.float32(1), np.float32(1.001)),
        (np.float32("nan"), np.float32(1)),
        ("float32", "bfloat16"),
    ],
)
def test_disagreement(actual: Any, expected: Any) -> None:
    with pytest.raises(AssertionError):
        agree(actual, expected)
    agree(expected, expected)


def test_threefry_has_the_published_answers() -> None:
    """Of Random123's file of known answers."""
    high = np.uint32(0xFFFFFFFF)
    assert threefry((high, high), ([high], [high]))[:, 0].tolist() == [0x1CB996FC, 0xBB002BE7]


def test_source_reproduces_a_check(tmp_path: Path) -> None:

    function: Any = PROGRAMS["jax_programs/random_bit/uniform"].function
    script = tmp_path / "program.py"
    text = source(function.__wrapped__)
    script.write_text(text)
    run_program(sys.executable, script, check=True)
    script.write_text(text.replace("np.float32(3)", "np.float32(4)"))
    assert "AssertionError" in run_program(sys.executable, script).stderr


def test_stack_is_in_the_id_and_unknown_ones_are_named(tmp_path: Path) -> None:
    ran = xla_harness("conformance", f"x={library.backend_path()}", "--levels", "2", "--stack", "a")
    assert ran.returncode == 2
    assert "stack 'a'" in ran.stderr
    data = tmp_path / "a.json"
    given = f"x={library.backend_path()}", "--check", "jax_programs/client_in_jax/*"
    xla_harness("conformance", *given, "--json", data)
    answer = json.loads(data.read_text())
    assert answer["mustpass"]["version"] == VERSION
    assert "import jax" in answer["checks"][0]["program"] or answer["checks"][0]["detail"]
