"""Every way for a case to end has its outcome, with evidence, and hurts no other case."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

import pytest
from support.project import Project, Ran

pytestmark = pytest.mark.measures_coverage


@dataclass(frozen=True)
class End:
    """A case's body, and what the run must say of it; the last two are regular expressions."""

    body: str
    outcome: str
    detail: str = ""
    evidence: tuple[str, ...] = ()
    signal: str = ""
    fixture: str = ""


PYTHON, NATIVE = r"Python stack:\n.*", r"Native stack:\n.*"
ENDS = {
    "pass": End("sys.left_behind = 1", "passed"),
    "assertion": End("assert 1 == 2, 'sums'", "failed", r"AssertionError: sums.*"),
    "skip": End("pytest.skip('no use')", "skipped", "no use"),
    "segfault": End(
        "ctypes.string_at(0)",
        "crashed",
        r"SIGSEGV in string_at \(.+\)",
        (PYTHON + r"test_outcomes_inner.py\", line \d+ in test_segfault", NATIVE + "ffi_call"),
        "SIGSEGV",
    ),
    "segfault_in_thread": End(
        "t = threading.Thread(target=ctypes.string_at, args=(0,), name='aside')\n"
        "t.start(); t.join()",
        "crashed",
        r"SIGSEGV in string_at \(.+\)",
        (PYTHON + "in string_at.*test_segfault_in_thread", NATIVE + r"ffi_call.*string_at"),
        "SIGSEGV",
    ),
    "segfault_in_thread_while_passing": End(
        "strlen = ctypes.CDLL(None).strlen\n"
        "threading.Thread(target=strlen, args=(None,)).start(); time.sleep(0.3)",
        "crashed",
        r"SIGSEGV in run \(threading\.py:\d+\)",
        signal="SIGSEGV",
    ),
    "abort": End(
        "os.abort()",
        "crashed",
        r"SIGABRT in test_abort \(.+\)",
        (PYTHON + "in test_abort", NATIVE + r"\babort \("),
        "SIGABRT",
    ),
    "crash_in_setup": End(
        "", "crashed", r"SIGABRT in broken .+", signal="SIGABRT", fixture="broken"
    ),
    # A small stack and large frames: Python 3.12 ends a recursion through C after 800 calls.
    "stack_overflow": End(
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, -1))\n"
        "sys.setrecursionlimit(10**9)\n"
        "array, sort = ctypes.create_string_buffer(1000), ctypes.CDLL(None).qsort\n"
        "kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)\n"
        "compare = kind(lambda *_: sort(array, 1000, 1, compare)); compare(None, None)",
        "crashed",
        r"SIGSEGV in <lambda> \(.+\)",
        (PYTHON + "in <lambda>",),
        "SIGSEGV",
    ),
    "hang": End(
        "t = threading.Thread(target=time.sleep, args=(60,)); t.start(); t.join()",
        "hung",
        r"no result after 0\.4 s in .+ \(threading\.py:\d+\)",
        (PYTHON + "Thread 0x.*in test_hang", NATIVE + "test_hang.*Thread .*sleep"),
    ),
    "hang_with_gil": End(
        "ctypes.PyDLL(None).sleep(60)",
        "hung",
        r"no result after 0\.4 s in test_hang_with_gil \(.+\)",
        (PYTHON + "in test_hang_with_gil", NATIVE + "nanosleep"),
    ),
    "hang_unabortable": End(
        "signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT]); time.sleep(60)",
        "hung",
        r"no result after 0\.4 s in test_hang_unabortable \(.+\)",
        (NATIVE + "test_hang_unabortable",),
    ),
    "exit_0": End("os._exit(0)", "crashed", "exited with status 0 before its result"),
    "exit_9": End("os._exit(9)", "crashed", "exited with status 9 before its result"),
    "sys_exit": End("sys.exit(3)", "failed", "SystemExit: 3"),
    "sigkill": End("os.kill(os.getpid(), 9)", "crashed", "SIGKILL", signal="SIGKILL"),
    "sigterm": End("os.kill(os.getpid(), 15)", "crashed", "SIGTERM", signal="SIGTERM"),
    "memory": End("bytearray(1 << 30)", "failed", "out of memory: MemoryError"),
    "memory_in_c": End(
        "os.write(2, b\"terminate called after throwing an instance of 'std::bad_alloc'\\n\")\n"
        "os.abort()",
        "crashed",
        r"SIGABRT in test_memory_in_c .+: out of memory",
        signal="SIGABRT",
    ),
    "fatal_log_line": End(
        "os.write(2, b'F0101 00:00:00.123456    77 pjrt.cc:12] Check failed: ok\\n'); os.abort()",
        "crashed",
        r"SIGABRT in .+: pjrt\.cc:12\] Check failed: ok",
        signal="SIGABRT",
    ),
    "fatal_log_line_of_xla": End(
        "os.write(2, b'2025-01-01 00:00:00.123456: F xla/pjrt.cc:12] Check failed: ok\\n')\n"
        "os.abort()",
        "crashed",
        r"SIGABRT in .+: xla/pjrt\.cc:12\] Check failed: ok",
        signal="SIGABRT",
    ),
    "after": End("assert not hasattr(sys, 'left_behind')", "passed"),
}


def inner_module() -> str:
    """One test for each end; all are run by one inner pytest."""
    parts = [
        "pytestmark = [pytest.mark.lanes('cpu'), pytest.mark.deadline(0.4)]",
        "@pytest.fixture\ndef broken():\n    os.abort()",
    ]
    for name, end in ENDS.items():
        deadline = "@pytest.mark.deadline(10)\n" if end.outcome != "hung" else ""
        body = textwrap.indent(end.body or "pass", "    ")
        parts.append(f"{deadline}def test_{name}({end.fixture}):\n{body}")
    return "\n\n\n".join(parts)


@pytest.fixture(scope="module", params=[(), ("-n", "2")], ids=["alone", "xdist"])
def ran(request: pytest.FixtureRequest, shared_project: Project) -> Ran:
    shared_project.write("test_outcomes_inner.py", inner_module())
    return shared_project.run("--memory-limit", "512", *request.param)


@pytest.mark.parametrize("name", ENDS)
def test_end_of_a_case(ran: Ran, name: str) -> None:
    end, properties = ENDS[name], ran.properties(f"test_{name}")
    assert properties["outcome"] == end.outcome
    assert re.fullmatch(end.detail, properties.get("outcome_detail", ""), re.DOTALL)
    assert properties.get("signal", "") == end.signal
    text = "".join(result.text or "" for result in ran.cases[f"test_{name}"].result)
    for pattern in end.evidence:
        assert re.search(pattern, text, re.DOTALL), text


def test_summary_counts_every_end(ran: Ran) -> None:
    assert len(ran.cases) == len(ENDS)
    assert ran.code == 1
