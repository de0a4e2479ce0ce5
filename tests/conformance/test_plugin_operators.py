"""Level L1, operators: the checks see wrong results, and say where."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from harness.conformance.asker import Asker, Servers
from harness.conformance.operators.accuracy import TABLE, ulps
from harness.conformance.operators.closeness import Expected, first_difference
from harness.conformance.operators.elementwise_checks import OPERATORS
from harness.conformance.operators.structure_checks import SPECIAL
from harness.conformance.plugin_check import LEVELS, Conformity, all_checks, of
from harness.conformance.plugin_file import PluginFile
from harness.lanes.virtual import library

BACKEND = PluginFile("xla_cpu", library.backend_path())


def ask(*checks: str) -> list[tuple[str, str]]:
    """Return the CPU plugin's result and detail for each check, in their order."""
    with Servers(2) as servers:
        given = [all_checks()[f"operators/{check}"] for check in checks]
        answers = {a.id: a for a in Asker(BACKEND).all(given, servers)}
    return [(str(answers[each.id].result), answers[each.id].detail) for each in given]


def test_sample_conforms() -> None:
    sample = "elementwise/add[f32]", "elementwise/power[u8]", "elementwise/sine[f32,empty]"
    assert {result for result, _ in ask(*sample)} == {"conforms"}


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
