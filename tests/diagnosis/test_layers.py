"""A failure's layer comes from where it was raised, on failures that real runs reported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT
from support.project import Project

from harness.diagnosis.frames import frames
from harness.diagnosis.layers import LAYERS, classify, layer_of
from harness.lanes.aot.case_compiler import CaseCompiler
from harness.lanes.aot.golden import Golden
from harness.lanes.events import EventLog
from harness.model import mismatch
from harness.model.case import Case
from harness.model.outcome import Kind, Outcome
from harness.model.topology import Target, Topology

RECORDED = ROOT / "fixtures" / "failures.toml"
FAILURES = tomllib.loads(RECORDED.read_text())["failure"]
SUITE = """\
from harness.model.mismatch import (
    CompilationError, DiscoveryError, MismatchError, NumbersError
)

pytestmark = pytest.mark.lanes("cpu")

def test_no_module(): import no_such_module
def test_no_name(): pytest.no_such_name
def test_no_parameter(): sorted([], no_such_parameter=1)
def test_upstream_has_no_name(): raise_in_library("'A' object has no attribute 'b'")
def test_signature(): assert 2 == 1, "signature: expected 1, got 2"
def test_numbers(): raise NumbersError("two")
def test_numbers_in_words(): assert 2 == 1, "numbers: expected 1, got 2"
def test_raised_from_numbers():
    try:
        raise NumbersError("two")
    except NumbersError as error:
        raise RuntimeError("wrapped") from error
def test_numbers_of_a_subtest(subtests):
    with subtests.test("one"):
        raise NumbersError("two")
@pytest.fixture
def wrong_end():
    yield
    raise CompilationError("of another program")
def test_error_of_a_teardown(wrong_end): pass
def test_compares(): assert [1].__eq__([2]) is True or equal(1, 2)
def test_discoveries(): raise DiscoveryError("two")
def test_discoveries_in_words(): raise AssertionError("2 discoveries, expected 1")
def test_form(): raise MismatchError(f"requires_grad is {[False].count(False).real.__eq__(1)}")
def test_memory(): raise MemoryError
@pytest.mark.xfail
def test_fails_by_a_marker(): raise NumbersError("two")
def test_refuses():
    with pytest.raises(ValueError): pass
def test_passes(): pass
def test_skips(): pytest.skip("no use")
def test_crashes(): os.abort()
@pytest.mark.deadline(0.3)
def test_hangs(): time.sleep(60)
def test_chained():
    try:
        raise_in_library("no")
    except AttributeError as error:
        raise RuntimeError("wrapped") from error
def equal(a, b): return a == b
def raise_in_library(text):
    sys.path.insert(0, "site-packages")
    from torch_xla import stablehlo
    stablehlo.fail(AttributeError(text))
"""
EXPECTED = {
    "no_module": "import",
    "no_name": "import",
    "no_parameter": "import",
    "upstream_has_no_name": "export",
    "signature": "verification",
    "numbers": "numbers",
    "numbers_in_words": "verification",
    "raised_from_numbers": "numbers",
    "numbers_of_a_subtest": "numbers",
    "error_of_a_teardown": "compile",
    "compares": "numbers",
    "discoveries": "discovery count",
    "discoveries_in_words": "verification",
    "form": "verification",
    "memory": "trace",
    "fails_by_a_marker": "",
    "refuses": "trace",
    "passes": "",
    "skips": "",
    "crashes": "execution",
    "hangs": "execution",
    "chained": "export",
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f"{f['stack']}-{f['case']}")
def test_recorded_failure(failure: dict[str, str]) -> None:
    kind, message = Kind(failure["outcome"]), failure["message"]
    if "error" in failure:
        carried = getattr(mismatch, failure["error"]).layer
        layer = layer_of(Outcome(kind, message, layer=carried), [])
    else:
        layer = classify(kind, message, failure["text"])
    assert layer == failure["layer"]


def test_errors_carry_layers_that_there_are() -> None:
    errors: list[type[mismatch.MismatchError]] = [
        mismatch.MismatchError,
        *mismatch.MismatchError.__subclasses__(),
    ]
    assert {error.layer for error in errors} <= LAYERS.keys()


def test_every_layer_but_import_is_recorded() -> None:
    assert {failure["layer"] for failure in FAILURES} == LAYERS.keys() - {"import"}


def test_in_a_report(project: Project) -> None:
    project.write("test_inner.py", SUITE)
    project.write("site-packages/torch_xla/__init__.py", "")
    project.write("site-packages/torch_xla/stablehlo.py", "def fail(error): raise error\n")
    ran = project.run("test_inner.py", PYTHONDONTWRITEBYTECODE="1")
    layers = {n: ran.properties(f"test_{n}").get("layer", "") for n in EXPECTED}
    assert layers == EXPECTED


def test_message_alone_decides_little() -> None:
    """As of a report without tracebacks."""
    assert classify(Kind.FAILED, "RuntimeError: no", "") == "trace"
    assert classify(Kind.CRASHED, "SIGSEGV", "") == "execution"
    assert classify(Kind.FAILED, "AssertionError: signature: 1", "") == "verification"
    assert classify(Kind.EXPECTED_FAILURE, "RuntimeError: no", "") == ""


def test_frames_are_innermost_first() -> None:
    text = (
        "suites/a.py:1: in test_a\n    b()\n    ^^^\n"
        "x/site-packages/torch_xla/core.py:2: in b\n    c(\nE   RuntimeError: no\n"
        'E     File "/x/site-packages/jax/d.py", line 3, in d\nE       e()\n'
    )
    triples = [(frame.place, frame.source, frame.is_upstream) for frame in frames(text)]
    assert triples == [
        ("jax/d.py::d", "e()", True),
        ("torch_xla/core.py::b", "c(", True),
        ("suites/a.py::test_a", "b()", False),
    ]


def test_frames_of_a_dump() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in other\n\n'
        'Current thread 0x2 (most recent call first):\n  File "a.py", line 2 in inner\n'
        '  File "a.py", line 3 in outer\n\nNative stack:\n'
    )
    assert [frame.function for frame in frames(dump)] == ["inner", "outer"]


@pytest.mark.parametrize(
    "line", ["\n", " \n", "  File \n", "E\n", "a:1: ", "(most recent call first):\n"]
)
def test_text_of_any_length_is_read_once(line: str) -> None:
    assert frames(line * (300_000 // len(line))) == []


def test_lanes_say_the_layer(tmp_path: Path) -> None:
    with pytest.raises(mismatch.DiscoveryError, match=r"^0 discoveries, expected 1"):
        EventLog(tmp_path / "none").expect_discoveries(1)
    case = Case("suites/sums/test_sums.py::test_sum", Target("tpu-aot", Topology(1, 4)))
    compiler = CaseCompiler(case, Golden(tmp_path))
    compiler._programs.append({})
    with pytest.raises(mismatch.CompilationError, match="has no golden compilation of test_sum"):
        compiler.compare()


@pytest.mark.parametrize("error", ["jaxlib._jax.XlaRuntimeError", "jax.errors.JaxRuntimeError"])
def test_jax_leaves_its_frames_out(error: str) -> None:
    """The innermost one is the user's call, which both compiles and executes."""
    assert classify(Kind.FAILED, f"{error}: UNIMPLEMENTED: no such", "") == "compile"
    assert classify(Kind.FAILED, f"{error}: INTERNAL: CpuCallback error: a", "") == "execution"


def test_torch_xla_leaves_the_code_out() -> None:
    """Its step marker both compiles and executes, and raises what the virtual TPU says alone."""
    stack = "a/torch_xla/torch_xla.py:87: in sync\n    torch_xla._XLAC._xla_step_marker(\n"
    refused = "ValueError: virtual TPU: the program is to be sharded: XLA's CPU compiler can't"
    assert classify(Kind.FAILED, refused, f"{stack}E   {refused}") == "compile"
    ended = "RuntimeError: virtual TPU: the job can't go on: rank 1 has ended"
    assert classify(Kind.FAILED, ended, f"{stack}E   {ended}") == "execution"
