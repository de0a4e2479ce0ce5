"""The layer of the stack at which a case went wrong: where to look, and who owns it.

A check that knows the layer says so: its error carries it (``harness.model.mismatch``). Otherwise
it follows from the statement of a failed assertion, or from the innermost frame that is at one
layer only, of the traceback or of the process that died. Messages are searched only for what
Python, PyTorch, JAX and XLA write. A case's process prints its tracebacks in pytest's short style
unless ``--tb`` says otherwise: of a style without functions in it little but the kind of the
exception is left to go by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from harness.diagnosis.frames import Frame, frames
from harness.model.outcome import DECLARABLE, Kind, Outcome

# In the order in which a program meets them.
LAYERS = {
    "import": "the release has no such module, name or parameter",
    "trace": "a call raised, or took what it should refuse: recording, annotating, placing",
    "export": "no StableHLO came of what was recorded",
    "verification": "the program, the annotations or what was left behind is not what it should be",
    "compile": "XLA or Mosaic refused the program, or made another of it than before",
    "execution": "a crash, a hang or an error while the program ran",
    "numbers": "it ran, and the values are wrong",
    "discovery count": "not as many MegaScale discoveries as the job needs",
}
_RUN = "compile or execution"  # one call does both: XLA's message tells them apart
_PASS = "whoever called this"

Rule = tuple[re.Pattern[str], str]

# Of JAX, whose frames it leaves out: then the innermost one is the user's call.
_XLA = re.compile(r"(\w+\.)*(Xla|Jax)RuntimeError: ")
_NO_MODULE = re.compile(r"(ImportError|ModuleNotFoundError): ")
_NO_NAME = re.compile(
    r"(AttributeError: .* has no attribute |TypeError: .* (unexpected|an invalid) keyword )"
)
_ASSERTION = re.compile(r"AssertionError\b|assert |Failed: (?!DID NOT)")
_REFUSED = re.compile(
    r"INVALID_ARGUMENT|UNIMPLEMENTED|NOT_FOUND|RET_CHECK failure|[Cc]ompil(e|ation) fail"
    r"|failed to legalize|Mosaic|\bHLO verif"
    r"|virtual TPU: .*XLA's CPU compiler"  # torch_xla leaves the code of PJRT's error out
)
# A statement that compares values, unless torch.testing found the types to differ.
_COMPARES = re.compile(r"\b(all_?close|(array_)?equal|assert_\w+)\(|\.(item|tolist)\(\)")
_DIFFERS = re.compile(r"^Mismatched elements: \d| location mismatch:", re.MULTILINE)  # of arrays
_TYPES = re.compile(r"The values for attribute 'dtype' do not match")

# Where a frame is (``file::function``) or what its statement calls; the first that fits.
_FRAMES = (
    (re.compile(r"torch_xla/stablehlo\.py::|get_stablehlo"), "export"),
    (re.compile(r"harness/ir/"), "verification"),
    (re.compile(r"harness/lanes/aot/compiler\.py::"), "compile"),
    (re.compile(r"(torch|numpy)/testing/"), "numbers"),
    (
        re.compile(r"jax/_src/compiler\.py::|\.(compile_and_load|compile|backend_compile)\("),
        "compile",
    ),
    (re.compile(r"jaxlib/mlir/|jax/_src/interpreters/mlir\.py::"), "trace"),
    (re.compile(r"harness/oracles/replicas\.py::|::(sync|mark_step|wait_device_ops)\b"), _RUN),
    (re.compile(r"_xla_(step_marker|sync_multi|warm_up_cache)\(|execute_sharded\("), _RUN),
    (re.compile(r"\.(cpu|item|tolist|numpy)\(\)|\b(as_numpy|sync|settle)\("), _RUN),
    (re.compile(r"_pytree\.py::|concurrent/futures/|harness/isolation/ranks\.py::"), _PASS),
    (re.compile(r"harness/job/slices\.py::"), _PASS),
)
_NATIVE = (
    (re.compile(r"InferOutputShape|XlaNode::XlaNode|::GetOpShape"), "trace"),
    (re.compile(r"ToStableHlo|ToMhlo|_get_stablehlo"), "export"),
    (re.compile(r"::(Compile|RunHloPasses)\b|HloPassPipeline|libtpu\.so"), "compile"),
    (re.compile(r"SyncTensorsGraph|Execute\w*\b|GetXlaData|Transfer(To|From)"), "execution"),
)


def layer_of(outcome: Outcome, reports: Sequence[pytest.TestReport]) -> str:
    """Return the first layer that differs from what the case expects; "" for a case that works.

    ``outcome`` is the actual one, ``reports`` are those of the case's phases; the first failed one
    has the frames. A failure that pytest's own marker expects has no layer.
    """
    if outcome.kind not in DECLARABLE or outcome.xfail is not None:
        return ""
    if outcome.layer:
        return outcome.layer
    failed = next((report for report in reports if report.failed), None)
    if failed is None:
        return classify(outcome.kind, outcome.message, "")
    return classify(outcome.kind, message_of(failed), failed.longreprtext)


def message_of(report: pytest.TestReport) -> str:
    """Return a failed report's exception, or else its whole text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext


def classify(kind: Kind, message: str, text: str) -> str:
    """Return the layer, one of LAYERS, of a failure that names none; "" if nothing is broken.

    ``message`` and ``text`` come from pytest: the exception, and the whole text with frames.
    """
    if kind not in DECLARABLE:
        return ""
    stack = frames(text)
    if kind != Kind.FAILED:
        native = text.partition("Native stack:\n")[2].splitlines()
        native_layer = next(filter(None, (_first(_NATIVE, line) for line in native)), "")
        layer = native_layer or _of_frames(stack) or _RUN
        return "execution" if layer == _RUN else layer
    layer = _of_exception(message, stack)
    if layer == _RUN:
        return "compile" if _REFUSED.search(message) else "execution"
    return layer


def _of_exception(message: str, stack: Sequence[Frame]) -> str:
    ours = not (stack and stack[0].is_upstream)
    if _ASSERTION.match(message) and _DIFFERS.search(message):
        return "numbers"
    if _NO_MODULE.match(message) or (ours and _NO_NAME.match(message)):
        return "import"
    if ours and _ASSERTION.match(message):
        return "numbers" if _of_values(message, stack) else "verification"
    return _of_frames(stack) or (_RUN if _XLA.match(message) else "trace")


def _of_values(message: str, stack: Sequence[Frame]) -> bool:
    compared = bool(stack) and _COMPARES.search(stack[0].source) is not None
    return compared and not _TYPES.search(message)


def _of_frames(stack: Iterable[Frame]) -> str:
    """Return the layer of the innermost frame that is more than passed through, or ""."""
    for frame in stack:
        layer = _first(_FRAMES, f"{frame.place}: {frame.source}")
        if layer != _PASS:
            return layer
    return ""


def _first(rules: Iterable[Rule], text: str) -> str:
    return next((layer for pattern, layer in rules if pattern.search(text)), "")
