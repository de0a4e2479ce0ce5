"""Only the case itself reports: not its copies, its children, or whoever writes to a descriptor."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest
from support.project import FASTER, Project, Ran

pytestmark = pytest.mark.measures_coverage

HEAD = "pytestmark = [pytest.mark.lanes('cpu'), pytest.mark.deadline(20)]\n"
AFTER = "\ndef test_after(): pass\n"
xdist = pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])


@pytest.mark.parametrize(
    ("copy", "rest", "outcome"),
    [
        ("return", "time.sleep(0.5); assert False", "failed"),
        ("assert False", "os.wait()", "passed"),
        ("pytest.skip('in the copy')", "assert os.wait()[1] == 0", "passed"),
        ("pytest.exit('in the copy')", "os.wait()", "passed"),
        ("raise KeyboardInterrupt", "os.wait()", "passed"),
        ("os.abort()", "assert os.WTERMSIG(os.wait()[1]) == signal.SIGABRT", "passed"),
        ("return", "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0", "passed"),
        ("assert False", "assert os.waitstatus_to_exitcode(os.wait()[1]) == 1", "passed"),
    ],
)
def test_a_forked_copy_does_not_speak_for_the_case(
    project: Project, copy: str, rest: str, outcome: str
) -> None:
    project.write(
        "test_inner.py",
        f"{HEAD}def test_x():\n    if os.fork() == 0:\n        {copy}\n"
        f"    else:\n        {rest}\n{AFTER}",
    )
    ran = project.run()
    assert ran.outcomes == {"test_x": outcome, "test_after": "passed"}
    assert ran.code == (outcome == "failed")


def test_the_failure_of_a_copy_is_in_the_output(project: Project) -> None:
    project.write(
        "test_inner.py",
        f"{HEAD}def test_x():\n    if os.fork() == 0: assert 6 * 7 == 41\n"
        "    os.wait(); assert 0\n",
    )
    ran = project.run()
    assert ran.shows("assert (6 * 7) == 41")


def test_a_leaked_child_does_not_speak_for_the_case(project: Project) -> None:
    """The child of ``multiprocessing`` inherits all descriptors, and writes to each of them."""
    project.write(
        "test_inner.py",
        HEAD + "import multiprocessing\n"
        "def scribble():\n"
        "    for descriptor in range(3, 64):\n"
        '        try: os.write(descriptor, b\'{"type": "done"}\\n\')\n'
        "        except OSError: pass\n"
        "def test_x():\n"
        "    process = multiprocessing.get_context('fork').Process(target=scribble)\n"
        "    process.start(); process.join(); assert False\n" + AFTER,
    )
    assert project.run().outcomes == {"test_x": "failed", "test_after": "passed"}


DONE = b'{"type": "done", "runtime_start": {}}'
STRAY = {
    "packet": bytes(16) + struct.pack("!II", 0, len(DONE)) + DONE,  # but for its token
    "text": b"hello",
    "line": b"\n",
    "json": DONE + b"\n",
    "report": b'{"type": "report", "report": {"outcome": "passed"}}\n',
    "long": b"x" * 60_000,
    "binary": bytes(range(256)) * 8,
}


@xdist
def test_stray_writes_are_ignored(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        HEAD + f"STRAY = {STRAY!r}\n"
        "@pytest.mark.parametrize('name', STRAY)\n"
        "@pytest.mark.parametrize('good', [True, False])\n"
        "def test_x(name, good):\n"
        "    for descriptor in range(3, 64):\n"
        "        try:\n"
        "            if os.fstat(descriptor).st_mode & 0o170000 in (0o010000, 0o140000):\n"
        "                os.write(descriptor, STRAY[name])\n"
        "        except OSError: pass\n"
        "    assert good\n",
    )
    ran = project.run(*xdist)
    assert len(ran.outcomes) == 2 * len(STRAY)
    for name, outcome in ran.outcomes.items():
        assert outcome == ("passed" if "True" in name else "failed"), name
    assert ran.shows("written to a descriptor of xla-harness were ignored")


def test_a_thread_that_floods_the_descriptors(project: Project) -> None:
    """Also while a report of several packets is under way."""
    project.write(
        "test_inner.py",
        HEAD + "def flood(descriptors):\n"
        "    while True:\n"
        "        for descriptor in descriptors:\n"
        "            try: os.write(descriptor, b'x' * 999)\n"
        "            except OSError: pass\n"
        "def sockets():\n"
        "    for descriptor in range(3, 64):\n"
        "        try:\n"
        "            if os.fstat(descriptor).st_mode & 0o170000 == 0o140000: yield descriptor\n"
        "        except OSError: pass\n"
        "def test_x():\n"
        "    threading.Thread(target=flood, args=[list(sockets())], daemon=True).start()\n"
        "    raise ValueError('y' * 500_000)\n" + AFTER,
    )
    ran = project.run()
    assert ran.outcomes == {"test_x": "failed", "test_after": "passed"}
    assert "ValueError" in ran.properties("test_x")["failure"]


def test_no_report_is_no_pass(project: Project) -> None:
    """A plugin takes the test in its own process, and does not run it."""
    project.write(
        "conftest.py",
        "PID = os.getpid()\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_protocol(): return os.getpid() != PID or None\n",
    )
    project.write("test_inner.py", f"{HEAD}def test_x(): pass\n")
    ran = project.run()
    assert ran.outcomes == {"test_x": "failed"}
    assert ran.properties("test_x")["failure"] == "no result was reported"
    assert ran.code == 1


@pytest.mark.parametrize("arguments", ["", "-s", "-n1"])
def test_output_that_nobody_reads(project: Project, arguments: str) -> None:
    """The session's own descriptors are the null device, as in a job that only wants the report."""
    project.write("test_inner.py", f"{HEAD}def test_x(): print('x')\n")
    project.write("pytest.ini", "[pytest]\nxla_preload =\n")
    command = f"{sys.executable} -m pytest --junitxml=junit.xml {' '.join(FASTER)} {arguments}"
    done = subprocess.run(
        command.split(),
        cwd=project.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    assert Ran(done.returncode, "", "", project.path / "junit.xml").outcomes == {"test_x": "passed"}


def test_closed_descriptors_cost_only_the_case(project: Project) -> None:
    project.write("test_inner.py", f"{HEAD}def test_x(): os.closerange(3, 256)\n{AFTER}")
    assert project.run().outcomes == {"test_x": "crashed", "test_after": "passed"}


MALFORMED = """
RECORDS = {
    "number": 5, "list": [1], "text": "passed", "empty": {}, "unknown": {"x": 1},
    "outcome": "perfect", "facts": [], "duration_body": "long", "id": None,
}

@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(config, report):
    data = yield
    own = data.get("xla_record") if data and hasattr(config, "workerinput") else None
    for name, value in RECORDS.items():
        if own and f"test_x[cpu-4-{name}]" in report.nodeid:
            data["xla_record"] = {**own, name: value} if name in own else value
    return data

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["xla_harness"] = {"left_out": 3}
"""


def test_malformed_messages_of_a_worker(project: Project) -> None:
    """As of another version of the plugin on a remote worker."""
    project.write("conftest.py", MALFORMED)
    project.write(
        "test_inner.py",
        HEAD + "from conftest import RECORDS\n"
        "@pytest.mark.parametrize('name', [*RECORDS, 'good'])\ndef test_x(name): pass\n",
    )
    ran = project.run("-n2", "-p", "no:cacheprovider")
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert ran.shows("10 passed, 9 errors")
    broken = {name: bool(case.result) for name, case in ran.cases.items()}
    assert broken == {name: "good" not in name for name in ran.cases}
    assert len(broken) == 10
    assert set(ran.outcomes.values()) == {"", "passed"}
    assert ran.code == 1


def test_a_worker_that_dies(project: Project) -> None:
    """It reports nothing any more: its test has failed, the others' results stay."""
    project.write(
        "conftest.py",
        "def pytest_runtest_logfinish(nodeid):\n"
        "    if 'PYTEST_XDIST_WORKER' in os.environ and 'die' in nodeid: os._exit(1)\n",
    )
    project.write(
        "test_inner.py",
        HEAD + "@pytest.mark.parametrize('n', [1, 'die', 2, 3])\ndef test_x(n): pass\n",
    )
    ran = project.run("-n2", "--max-worker-restart=2")
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert {name: outcome for name, outcome in ran.outcomes.items() if "die" not in name} == {
        f"test_x[cpu-4-{n}]": "passed" for n in (1, 2, 3)
    }
