"""What people read of a failure, and what groups failures, on what real assertions raise."""

from __future__ import annotations

import unittest
from collections.abc import Callable

import numpy as np
import pytest

from harness.diagnosis.layers import classify
from harness.diagnosis.signature import first_line, generalised, headline, with_name_joined
from harness.expectations.failure_pattern import describes, signature_of
from harness.model.outcome import Kind

ONES, ZEROS = np.ones(3), np.zeros(3)


def message_of(call: Callable[[], object]) -> str:
    """The message of the assertion that the call fails, as pytest gives it."""
    with pytest.raises(AssertionError) as raised:
        call()
    return raised.exconly()


NUMPY = message_of(lambda: np.testing.assert_allclose([1, 1, 1.5], ONES, err_msg="rank 3"))
LATER = message_of(lambda: np.testing.assert_allclose([1.25, 1, 9], ONES, err_msg="rank 1"))
CHEX = (  # chex's frame around what NumPy says; it is no dependency of ours
    "AssertionError: [Chex] Assertion assert_trees_all_close failed:  Trees 0 and 1 differ in "
    f"leaves 'a': {NUMPY.removeprefix('AssertionError: ')}"
)
UNITTEST = message_of(lambda: unittest.TestCase().assertEqual([1, 2], [1, 3]))  # noqa: PT009


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        (NUMPY, ("rank 3", "Mismatched elements: 1 / 3 (33.3%)", "Max absolute difference", "0.5")),
        (CHEX, ("leaves 'a': Not equal to", "Mismatched elements: 1 / 3", "difference", "0.5")),
        (UNITTEST, ("[1, 2] != [1, 3]; First differing element 1: 2; 3",)),
        (f"a kernel's race: {NUMPY}", ("race: AssertionError: Not equal", "1 / 3")),
        ("assert 3.0 == 4\n +  where 3.0 = sum()", ("assert 3.0 == 4",)),
    ],
    ids=["numpy", "chex", "unittest", "prefix", "pytest"],
)
def test_headline_says_what_differs(message: str, texts: tuple[str, ...]) -> None:
    line = headline(message)
    assert all(text in line for text in texts)
    assert "where" not in line
    assert "\n" not in line
    assert len(line) < 700


@pytest.fixture(scope="module")
def torch_message() -> str:
    import torch  # here, as every worker imports this module to collect it

    return message_of(lambda: torch.testing.assert_close(torch.ones(3), torch.zeros(3)))


def test_headline_of_torch(torch_message: str) -> None:
    for text in ("are not close! Mismatched elements: 3 / 3", "Greatest absolute difference: 1.0"):
        assert text in headline(torch_message)
    assert len(headline(torch_message)) < 700


def test_headline_of_large_arrays_ends() -> None:
    noise = np.random.default_rng(0).normal(size=(40, 7))
    line = headline(message_of(lambda: np.testing.assert_allclose(noise, noise + 1)))
    assert "Mismatched elements: 280 / 280" in line
    assert line.endswith(" ...")


def test_only_assertions_say_more_than_a_line() -> None:
    assert headline("XlaRuntimeError: INTERNAL: no\nStack of the compiler:\n1") == (
        "XlaRuntimeError: INTERNAL: no"
    )
    raised = f"RankError: rank 3 of 8 raised {with_name_joined(NUMPY)}"
    line = headline(f"{raised}\nTraceback (most recent call last):\n  File ...")
    assert "1 / 3 (33.3%)" in line
    assert "File" not in line


def test_numbers_split_no_group() -> None:
    assert headline(NUMPY) != headline(LATER)
    assert generalised(NUMPY) == generalised(LATER)
    assert generalised(with_name_joined(NUMPY)) == generalised(NUMPY)


@pytest.mark.parametrize(
    "message",
    [
        "Cannot lower jaxpr with verifier errors:\n\nat step 3:\nno such axis",
        "callback failed: Traceback (most recent call last):\n  File 3\nValueError: no",
        "a:\n" * 4,
    ],
)
def test_a_declared_signature_describes_lines_that_announce_each_other(message: str) -> None:
    assert describes(signature_of(message), message)


def test_a_declared_signature_needs_more_than_the_exception() -> None:
    signature = signature_of(NUMPY)
    assert describes(signature, LATER)
    assert describes(signature, with_name_joined(LATER))
    assert not describes(signature, message_of(lambda: np.testing.assert_array_equal(ONES, ZEROS)))


def test_arrays_that_differ_are_numbers(torch_message: str) -> None:
    frames = "/x/site-packages/jax/_src/public_test_util.py:141: in _assert_numpy_allclose\n    f()"
    for message in (NUMPY, torch_message, CHEX):
        assert classify(Kind.FAILED, message, f"{frames}\nE   {message}") == "numbers", message


REASON = "'stablehlo.reduce_scatter' op attribute 'scatter_dimension' failed to satisfy constraint"
VERIFIER = f"""\
ValueError: Cannot lower jaxpr with verifier errors:
\t{REASON}
\t\tat loc("reduce_scatter"(callsite("f"("test_step.py":19:0)))
"""
CALLBACK = """\
jaxlib._jax.XlaRuntimeError: INTERNAL: CpuCallback error: Traceback (most recent call last):
  File "site-packages/jax/_src/callback.py", line 784, in _wrapped_callback
  File "test_step.py", line 9, in check
ValueError: no fives
--------------------
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("ValueError: too late\nmore", "ValueError: too late"),
        ("", ""),
        ("ValueError:\n", "ValueError:"),
        (VERIFIER, f"ValueError: Cannot lower jaxpr with verifier errors: {REASON}"),
        (
            CALLBACK,
            "jaxlib._jax.XlaRuntimeError: INTERNAL: CpuCallback error: ValueError: no fives",
        ),
    ],
    ids=["one", "none", "bare", "verifier", "callback"],
)
def test_first_line_has_the_reason_that_it_announces(message: str, line: str) -> None:
    assert first_line(message) == line
    assert headline(message) == line
