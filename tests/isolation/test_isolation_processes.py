"""Whatever ends a case, or the run, leaves no process behind."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.processes import assert_gone, is_alive
from support.project import Project

NOTE = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.deadline(20)]
SLEEP = ["sleep", "60"]

def note(pid):
    with open("pids", "a") as file:
        print(pid, file=file)

def daemon():
    "A process that left the session and whose parent has died."
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note(os.getpid())
            os.execvp(SLEEP[0], SLEEP)
        os._exit(0)
    os.wait()
    time.sleep(0.1)

def start():
    note(os.getpid())
    note(subprocess.Popen(SLEEP).pid)
    note(subprocess.Popen(SLEEP, start_new_session=True).pid)
    note(subprocess.Popen(["sh", "-c", "setsid sleep 60 & echo $! >> pids; wait"]).pid)
    daemon()

def is_alive(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
"""


def pids(project: Project, count: int) -> list[int]:
    """The process ids that the cases noted, once there are ``count``."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        file = project.path / "pids"
        found = file.read_text(encoding="utf-8").split() if file.exists() else []
        if len(found) >= count:
            return list(map(int, found))
        time.sleep(0.02)
    raise AssertionError(f"fewer than {count} processes were started")


@pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])
def test_what_a_case_starts_ends_with_it(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        NOTE + "def test_passes(): start()\n"
        "def test_passes_in_its_wake(): assert not any(map(is_alive, Path('pids').read_text()"
        ".split()[:6]))\n"
        "def test_crashes(): start(); os.abort()\n"
        "def test_exits(): start(); os._exit(0)\n"
        "@pytest.mark.deadline(1)\ndef test_hangs(): start(); time.sleep(60)",
    )
    ran = project.run(*xdist)
    assert ran.outcomes["test_crashes"] == ran.outcomes["test_exits"] == "crashed"
    assert ran.outcomes["test_hangs"] == "hung"
    assert ran.outcomes["test_passes"] == "passed"
    if not xdist:  # else another worker may be at it
        assert ran.outcomes["test_passes_in_its_wake"] == "passed"
    assert not any(map(is_alive, pids(project, 24)))


def test_a_shared_process_ends_with_its_group(project: Project) -> None:
    project.write(
        "test_inner.py",
        NOTE + "pytestmark.append(pytest.mark.share('us'))\n"
        "def test_a(): start()\ndef test_b(): note(os.getpid())\n",
    )
    assert set(project.run().outcomes.values()) == {"passed"}
    first, *others, last = pids(project, 7)
    assert first == last
    assert not any(map(is_alive, [first, *others]))


@pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])
def test_ctrl_c_leaves_no_process(project: Project, xdist: tuple[str, ...]) -> None:
    project.write("test_inner.py", NOTE + "def test_x(): start(); time.sleep(60)")
    with project.start(*xdist) as pytest_process:
        started = pids(project, 6)
        assert all(is_alive(pid) for pid in started[:3])
        time.sleep(0.2)
        os.killpg(pytest_process.pid, signal.SIGINT)  # as the terminal does
        stdout, _ = pytest_process.communicate(timeout=100)
    assert pytest_process.returncode == 2
    assert "KeyboardInterrupt" in stdout
    assert_gone(started)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_pytest_ends_its_cases(project: Project, number: signal.Signals) -> None:
    body = "def test_x(): note(os.getpid()); ctypes.PyDLL(None).sleep(60)"
    project.write("test_inner.py", NOTE + body)
    with project.start() as pytest_process:
        started = pids(project, 1)
        pytest_process.send_signal(number)
        pytest_process.communicate(timeout=100)
    assert pytest_process.returncode == -number
    assert_gone(started)
