"""Whatever ends a case, or the run, leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import assert_gone, is_alive
from support.project import Project

from harness.isolation.watchdog import Watchdog, kill_abandoned

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
        texts = file.read_text(encoding="utf-8").split() if file.exists() else []
        if len(texts) >= count:
            return list(map(int, texts))
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


FORKS = """
def fork():
    "A mere fork that left the session: its environment is pytest's."
    if os.fork() == 0:
        os.setsid()
        note(os.getpid())
        time.sleep(60)
        os._exit(0)

def test_x(): start(); fork(); ctypes.PyDLL(None).sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("xdist", [(), ("-n1",)], ids=["alone", "xdist"])
def test_killing_pytest_ends_what_its_cases_have_started(
    project: Project, number: signal.Signals, xdist: tuple[str, ...]
) -> None:
    project.write("test_inner.py", NOTE + FORKS)
    with project.start(*xdist, TMPDIR=str(project.path)) as pytest_process:
        started = pids(project, 7)
        assert all(map(is_alive, started))
        pytest_process.send_signal(number)
        pytest_process.communicate(timeout=100)
    assert pytest_process.returncode == -number
    assert_gone(started, seconds=10)
    assert_gone(watchdogs(project), seconds=10)
    assert list(project.path.glob("xla-harness*")) == []


def watchdogs(project: Project) -> list[int]:
    """The processes that run pytest, or watch over one, in the project's folder."""
    watching = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == project.path:
                watching.append(int(process.name))
    return watching


def test_what_was_killed_with_its_watchdog_ends_at_the_next_start(project: Project) -> None:
    project.write("test_inner.py", NOTE + "def test_x(): start(); time.sleep(60)")
    with project.start(TMPDIR=str(project.path)) as pytest_process:
        started = pids(project, 6)
        parent = pytest_process.pid
        own = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        (watchdog,) = set(map(int, own)) - set(started)
        os.kill(watchdog, signal.SIGKILL)
        pytest_process.kill()
        pytest_process.communicate(timeout=100)
    assert_gone(started[:1])  # the case itself
    assert all(map(is_alive, started[1:]))
    assert len(list(project.path.glob("xla-harness*"))) == 1
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    assert project.run(TMPDIR=str(project.path)).outcomes == {"test_x": "passed"}
    assert not any(map(is_alive, started))
    assert list(project.path.glob("xla-harness*")) == []


def test_nobody_else_is_hit(project: Project) -> None:
    """Neither processes of a run that goes on, nor of what can't be judged from here."""
    alive, stranger = Watchdog(), Path("/proc/self/ns/pid").stat().st_ino + 1
    namespace, pid, _, chance = alive.token.split(".")
    tokens = {
        "of a run that goes on": alive.token,
        "of another namespace": f"{stranger}.{pid}.1.{chance}",
        "no number": f"{namespace}.x.1.{chance}",
        "nonsense": "nonsense",
        "empty": "",
        "of a dead run": f"{namespace}.{pid}.1.{chance}",
        "of a dead run, in one that goes on": f"{namespace}.{pid}.1.{chance},{alive.token}",
    }
    processes = {
        name: subprocess.Popen(["sleep", "60"], env={**os.environ, "XLA_HARNESS_RUN": token})
        for name, token in tokens.items()
    }
    time.sleep(0.2)  # until each has its own environment
    kill_abandoned()
    alive.close()
    killed = {name for name, process in processes.items() if process.poll() is not None}
    for process in processes.values():
        process.kill()
        process.wait()
    assert killed == {"of a dead run", "of a dead run, in one that goes on"}


@pytest.mark.parametrize("processes", [(), ("--processes", "chip")], ids=["one", "chips"])
def test_killing_run_ends_what_its_command_has_started(
    tmp_path: Path, processes: tuple[str, ...]
) -> None:
    script = tmp_path / "script"
    script.write_text("echo $$ >> pids; setsid sleep 60 & echo $! >> pids; sleep 60")
    command = [sys.executable, "-m", "harness", "run", "--topology", "2", *processes]
    with subprocess.Popen([*command, "--", "sh", str(script)], cwd=tmp_path) as run:
        started = pids(Project(tmp_path), 4 if processes else 2)
        run.kill()
    assert_gone(started, seconds=10)


def test_processes_that_start_at_once_keep_their_folders(tmp_path: Path) -> None:
    """Each removes what dead ones have left, and a folder is without a lock when it is made."""
    code = "from harness.scratch import Scratch\nfor _ in range(400): Scratch().close()"
    command = [sys.executable, "-c", code]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    started = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert list(tmp_path.iterdir()) == []
