"""Level L1, operators: the checks see wrong results, and say where."""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.commands import run_program, xla_harness

from harness.conformance.asker import Asker, Servers
from harness.conformance.c_api.api import UNIMPLEMENTED, ApiError
from harness.conformance.operators import evaluation, uncovered_operators
from harness.conformance.operators.accuracy import TABLE, ulps
from harness.conformance.operators.closeness import Expected, first_difference
from harness.conformance.operators.devices import JaxlibDevice
from harness.conformance.operators.element_types import TYPES
from harness.conformance.operators.elementwise_checks import OPERATORS
from harness.conformance.operators.structure_checks import SPECIAL
from harness.conformance.plugin_check import LEVELS, Conformity, all_checks, of
from harness.conformance.plugin_file import NO_FILE, PluginFile
from harness.lanes.virtual import library
from harness.sensitivity.planted_programs import measure

BACKEND = PluginFile("xla_cpu", library.backend_path())


def ask(*checks: str, plugin: PluginFile = BACKEND) -> list[tuple[str, str]]:
    """Return the plugin's result and detail for each check, in their order."""
    with Servers(2) as servers:
        given = [all_checks()[f"operators/{check}"] for check in checks]
        answers = {a.id: a for a in Asker(plugin).all(given, servers)}
    return [(str(answers[each.id].result), answers[each.id].detail) for each in given]


def test_sample_conforms() -> None:
    sample = "elementwise/add[f32]", "elementwise/power[u8]", "elementwise/sine[f32,empty]"
    assert {result for result, _ in ask(*sample)} == {"conforms"}


def test_jaxlibs_own_client_is_asked_through_jax() -> None:
    names = "elementwise/add[s4]", "elementwise/atan2_of_denormals[f32]", "choice/compare[f64]"
    results = ask(*names, plugin=PluginFile("cpu", NO_FILE))
    assert [result for result, _ in results] == ["conforms", "fails", "conforms"]
    assert "stablehlo.atan2: at [0, 0] it is" in results[1][1]


def test_refusal_by_jaxlib_keeps_its_code() -> None:
    device = JaxlibDevice(lambda _: None)
    with pytest.raises(ApiError, match=r"stablehlo\.nothing") as refused:
        device.evaluate('module { "stablehlo.nothing"() : () -> () }', [], [])
    assert refused.value.code != UNIMPLEMENTED


def test_failure_names_element_and_program() -> None:
    with Servers(1) as servers:
        check = all_checks()["operators/elementwise/maximum_of_nan[f32]"]
        (answer,) = Asker(BACKEND).all([check], servers)
    assert answer.result is Conformity.FAILS
    assert answer.detail == (
        "stablehlo.maximum: at [0, 4] it is 0, expected nan (5 of 25 elements are wrong)"
    )
    assert '"stablehlo.maximum"(%0, %1)' in answer.program
    assert "// %1 = [0.0, -0.0, 1.0, inf, nan, " in answer.program


@pytest.mark.parametrize(
    ("kind", "exact", "result", "words"),
    [
        ("f32", [1.0], [1 + 2**-23], "1 ULPs away, where 0.5 are allowed"),
        ("bf16", [1.0], [1.0078125], "1 ULPs away"),
        ("f32", [1.0], [np.nan], "it is nan, expected 1"),
        ("f32", [np.nan], [1.0], "it is 1, expected nan"),
        ("f32", [np.inf], [3.4e38], "expected inf"),
        ("f32", [0.0], [-0.0], "it is -0, expected 0"),
        ("f32", [1e-30], [0.0], "it is 0"),
        ("s32", [7], [8], "it is 8, expected 7"),
        ("pred", [True], [False], "it is false, expected true"),
        ("c64", [1 + 1j], [1 + 1.001j], "(1+1.00"),
    ],
)
def test_wrong_value_is_seen(
    kind: str, exact: list[complex], result: list[complex], words: str
) -> None:
    from harness.conformance.operators.element_types import dtype

    expected = Expected(kind, np.array(exact))
    assert words in first_difference(np.array(result).astype(dtype(kind)), expected)
    assert first_difference(np.array(exact).astype(dtype(kind)), expected) == ""


def test_denormal_may_be_zero_and_overflow_infinite() -> None:
    tiny, huge = Expected("f32", np.array([1e-40])), Expected("f32", np.array([1e39]))
    assert first_difference(np.array([0], np.float32), tiny) == ""
    assert first_difference(np.array([np.inf], np.float32), huge) == ""
    assert first_difference(np.array([-np.inf], np.float32), huge)
    assert first_difference(np.array([np.nan], ml_dtypes.float8_e4m3fn), huge) == ""


def test_accuracy_is_a_bound_for_operators_that_there_are() -> None:
    names = {name.removeprefix("complex ") for name in TABLE} - {"complex"}
    assert names <= {*OPERATORS, *SPECIAL}
    assert {*SPECIAL} <= names
    assert ulps("add", "f32") == 0.5
    assert ulps("exponential", "f64") == 3


def test_ids_are_unique_and_of_their_level() -> None:
    names = list(of(LEVELS[1]))
    assert len(set(names)) == len(names) > 700
    assert all(name.startswith("operators/") for name in names)


class ProgramTakenError(Exception):
    """The end of a check whose program was wanted, and not its results."""


class ProgramTaker:
    """A client that takes the program of a check and runs nothing."""

    def note_program(self, program: str) -> None:
        raise ProgramTakenError(program)


def test_uncovered_operators_are_those_of_no_program() -> None:
    """Every check is asked for its program; jaxlib has the list of all operators."""
    from jaxlib.mlir.dialects import chlo, stablehlo

    used = set[str]()
    for check in of(LEVELS[1]).values():
        with pytest.raises(ProgramTakenError) as taken:
            check(ProgramTaker())
        used |= set(re.findall(r"(?<!#)\b(?:stablehlo|chlo)\.\w+", str(taken.value)))
    known = {
        each.OPERATION_NAME
        for dialect in (stablehlo, chlo)
        for each in vars(dialect).values()
        if hasattr(each, "OPERATION_NAME")
    }
    elsewhere = {f"stablehlo.{name}" for name in uncovered_operators.ELSEWHERE}
    others = {n for n in known if n.startswith(("chlo.broadcast_", "chlo._"))}
    assert known - used - elsewhere - others == set(uncovered_operators.OPERATORS)
    assert not set(uncovered_operators.TYPES) & set(TYPES)


def test_uncovered_operators_are_counted(tmp_path: Any) -> None:
    data = tmp_path / "answer.json"
    given = f"x={BACKEND.path}", "--check", "operators/movement/iota[[]s2]", "--json", data
    ran = xla_harness("conformance", *given)
    names = json.loads(data.read_text())["uncovered"]["1"]
    assert {"stablehlo.composite", "f8E8M0FNU"} <= set(names)
    assert f"{len(names)} operators and types of StableHLO are not covered" in ran.stdout


_INTERPRETED = (
    "elementwise/*[[]f32]",
    "movement/*[[]s32]",
    "indexing/gather_*[[]f32]",
    "indexing/scatter_*[[]s32,out of bounds]",
    "reduction/convolution[[]f32,*]",
    "reduction/reduce_window_*[[]f32,*",
    "choice/sort[[]s32]",
    "structure/case[[]f32,*]",
)


def _interpreted(
    _: Any, __: str, operations: Sequence[evaluation.Operation], **___: Any
) -> list[Any]:
    """Return the results of StableHLO's reference interpreter, as a plugin's are returned."""
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with make_ir_context() as context:
        stablehlo.register_interpreter_dialect(context)
        operands = []
        for each in (operand for operation in operations for operand in operation.operands):
            kind = ir.IntegerType.get_signless(1) if each.dtype == bool else None
            bits = np.packbits(each.reshape(-1), bitorder="little") if kind else each.copy()
            operands.append(ir.DenseElementsAttr.get(bits, type=kind, shape=each.shape))
        module = ir.Module.parse(evaluation.module(operations))
        results = stablehlo.eval_module(module, operands)
        return [np.array(ir.DenseElementsAttr(each)) for each in results]


def test_oracle_agrees_with_the_reference_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "run", _interpreted)
    chosen = [
        check
        for name, check in of(LEVELS[1]).items()
        if any(fnmatch.fnmatchcase(name, f"operators/{pattern}") for pattern in _INTERPRETED)
    ]
    assert len(chosen) > 100
    for check in chosen:
        check(None)


def test_planted_faults_are_seen() -> None:
    names = "movement/pad[f32]", "reduction/reduce_add[f32]", "choice/compare[s32]"
    chosen = {f"operators/{name}": all_checks()[f"operators/{name}"] for name in names}
    with Servers(2) as servers:
        results = measure(Asker(BACKEND), chosen, (1, 5), servers, lambda _: None)
    planted = [each for each in results if each.is_planted]
    assert len(planted) > 2
    assert [each.fault for each in planted if not each.check] == []


@pytest.mark.parametrize(
    ("package", "options", "words"),
    [
        ("ml_dtypes", (), "level 1 needs the package ml_dtypes: pip install"),
        ("jaxlib", ("--faults", "1"), "at level 1 it needs the package jaxlib"),
    ],
)
def test_missing_package_is_named(package: str, options: Sequence[str], words: str) -> None:
    given = "conformance", f"x={BACKEND.path}", "--levels", "1", *options
    program = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {list(given)}"
    ran = run_program(
        sys.executable, "-c", f"{program}; from harness.cli import main; sys.exit(main())"
    )
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert words in " ".join(ran.stderr.split())
