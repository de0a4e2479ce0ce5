"""Workers of one job, each a real pytest: they start a case together, and find together again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.project import Project, Ran

from harness.errors import BadInputError
from harness.job import job
from harness.junit import report
from harness.messages.ports import free_port

NOTE = """
pytestmark = pytest.mark.lanes("cpu")
WORKER = os.environ["MEGASCALE_SLICE_ID"]
def note(what):
    with open("../notes", "a") as file:
        print(what, WORKER, time.monotonic(), file=file)
"""
TOKEN = "0123456789abcdef" * 4
Started = list[tuple[Project, subprocess.Popen[str]]]
Workers = Callable[..., Started]


def said(ran: Ran) -> dict[str, tuple[str, str]]:
    """Outcome and failure of each case."""
    results = report.read(ran.junit).results.values()
    return {r.id.partition("::")[2].partition("[")[0]: (str(r.outcome), r.failure) for r in results}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Workers]:
    """Start a worker for each slice on one suite; ``bodies`` are of workers that have another."""

    processes: Started = []

    def run(
        body: str,
        *args: str,
        count: int = 2,
        bodies: dict[int, str] | None = None,
        **more: str,
    ) -> Started:
        port = str(free_port())
        for number in range(count):
            project = Project(tmp_path / str(number))
            project.write("test_inner.py", NOTE + (bodies or {}).get(number, body))
            environment = {
                "MEGASCALE_NUM_SLICES": str(count),
                "MEGASCALE_SLICE_ID": str(number),
                "XLA_HARNESS_RENDEZVOUS": f"127.0.0.1:{port}",
                "XLA_HARNESS_JOB_TOKEN": TOKEN,
                **more,
            }
            processes.append((project, project.start(*args, **environment)))
        return list(processes)

    yield run
    for _, process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end(processes: Started) -> list[Ran]:
    ended = []
    for project, process in processes:
        stdout, stderr = process.communicate(timeout=100)
        ended.append(Ran(process.returncode, stdout, stderr, project.path / "junit.xml"))
    return ended


def test_each_case_starts_on_all_workers_together(start: Workers, tmp_path: Path) -> None:
    body = """
@pytest.mark.parametrize("n", range(3))
def test_a(n):
    note(f"{n} start")
    time.sleep(0.4 * (WORKER == str(n)))
    note(f"{n} end")
"""
    ended = end(start(body, count=3))
    assert [ran.code for ran in ended] == [0, 0, 0]
    times: dict[str, list[float]] = {}
    for line in (tmp_path / "notes").read_text().splitlines():
        number, event, _, at = line.split()
        times.setdefault(f"{number} {event}", []).append(float(at))
    assert {len(each) for each in times.values()} == {3}
    assert max(times["0 end"]) < min(times["1 start"])
    assert max(times["1 end"]) < min(times["2 start"])


def test_they_meet_again_after_one_hung(start: Workers) -> None:
    """The others wait for the one that hangs, and its own deadline bounds that."""
    body = """
def test_a(): note("a")
@pytest.mark.deadline(1)
def test_b(): time.sleep(60 * (WORKER == "1"))
def test_c(): note("c")
"""
    first, second = end(start(body))
    assert said(first) == dict.fromkeys(("test_a", "test_b", "test_c"), ("passed", ""))
    assert {name: outcome for name, (outcome, _) in said(second).items()} == {
        "test_a": "passed",
        "test_b": "hung",
        "test_c": "passed",
    }


@pytest.mark.parametrize("late", [0, 1])
def test_one_that_is_held_up_gives_up_cases_until_it_meets_the_others(
    start: Workers, late: int
) -> None:
    """Held up outside of any deadline: here between two cases, by a plugin."""
    body = "".join(f"\ndef test_{n}(): time.sleep(0.1)\n" for n in range(20))
    hold = f"""
@pytest.fixture(autouse=True, scope="session")
def nothing(): pass
import harness.session.running as running
_before = running.settle
def slow(item, *rest):
    if WORKER == "{late}" and "test_2[" in item.nodeid:
        time.sleep(5)
    return _before(item, *rest)
running.settle = slow
"""
    more = {"XLA_HARNESS_PATIENCE": "0.5"}
    ended = end(start(hold + body, "--deadline=1.5", **more))
    outcomes = [said(ran) for ran in ended]
    for cases in outcomes:
        assert len(cases) == 20
        assert cases["test_1"] == cases["test_19"] == ("passed", "")
    for n in range(20):  # never one without the other
        both = {cases[f"test_{n}"][0] for cases in outcomes}
        assert both == {"passed"} or "passed" not in both or n == 2, (n, both)
    missed = [why for cases in outcomes for _, why in cases.values() if why]
    assert missed
    name = f"worker {late}-0"
    assert any(name in why for why in missed), missed
    assert any("came late: the others are at" in w or "has gone on to" in w for w in missed), missed


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_worker_that_dies_is_named_in_each_case_after_it(
    start: Workers, killed: int, tmp_path: Path
) -> None:
    body = "".join(f"\ndef test_{n}(): note({n}); time.sleep(0.2)\n" for n in range(20))
    processes = start(body, count=3)
    notes = tmp_path / "notes"
    while not (notes.exists() and len(notes.read_text().splitlines()) >= 6):
        time.sleep(0.05)
    processes.pop(killed)[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    for ran in end(processes):
        outcomes = said(ran)
        assert len(outcomes) == 20
        assert outcomes["test_0"] == ("passed", "")
        kind, why = outcomes["test_19"]
        assert (kind, why) == ("crashed", f"worker {killed}-0 is gone: its connection was lost")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("absent", [0, 1])
def test_a_worker_that_never_starts_is_named(start: Workers, absent: int) -> None:
    processes = start("\ndef test_a(): pass\n", XLA_HARNESS_PATIENCE="0.3", count=2)
    processes.pop(absent)[1].kill()
    (ran,) = end(processes)
    kind, why = said(ran)["test_a"]
    assert kind in ("hung", "crashed")
    assert f"worker {absent}-0" in why


def test_strangers_at_the_port_disturb_nobody(start: Workers) -> None:
    """While the cases run, and the first worker looks at no connection."""
    body = """
WORDS = (
    b"GET / HTTP/1.1\\r\\n", b"[]\\n", b'{"worker": 7}\\n', b"", b"[" * 100000 + b"\\n",
    b'{"worker": 1, "digest": "0"}\\n', b'{"at": 99, "case": "x"}\\n', b"a" * 100000,
    b'{"token": "' + b"0" * 64 + b'", "worker": 1, "about": "0"}\\n',
)
def test_a(): time.sleep(0.1)
def test_b():
    import socket
    if WORKER == "1":
        port = int(os.environ["XLA_HARNESS_RENDEZVOUS"].rpartition(":")[2])
        for words in WORDS * 10:
            with socket.create_connection(("127.0.0.1", port)) as knock:
                knock.setblocking(False)
                knock.send(words)
def test_c(): pass
"""
    for ran in end(start(body)):
        assert said(ran) == dict.fromkeys(("test_a", "test_b", "test_c"), ("passed", ""))


def test_without_a_token_there_is_no_job(start: Workers) -> None:
    for ran in end(start("\ndef test_a(): pass\n", XLA_HARNESS_JOB_TOKEN="")):
        assert ran.code == 2
        assert ran.shows("XLA_HARNESS_JOB_TOKEN is not set: expected 32 to 128 hexadecimal digits")
        assert "Traceback" not in ran.stdout + ran.stderr


def test_workers_with_other_cases_stop_at_once(start: Workers) -> None:
    ended = end(start("\ndef test_a(): pass\n", bodies={1: "\ndef test_z(): pass\n"}))
    for ran in ended:
        assert ran.code == 2
        assert ran.shows("worker 1-0 has other cases than 0-0")


def test_xdist_is_refused(start: Workers) -> None:
    for ran in end(start("\ndef test_a(): pass\n", "-n2")):
        assert ran.code == 2
        assert ran.shows("-n: expected one process on each worker of a job")


def test_alone_there_is_no_rendezvous(project: Project) -> None:
    project.write("test_inner.py", "pytestmark = pytest.mark.lanes('cpu')\ndef test_a(): pass\n")
    assert project.run(XLA_HARNESS_RENDEZVOUS="nowhere.invalid:1").code == 0


JOB = {
    "XLA_HARNESS_JOB_TOKEN": TOKEN,
    "XLA_HARNESS_RENDEZVOUS": "head:8479",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "TPU_WORKER_HOSTNAMES": "a,b",
    "TPU_WORKER_ID": "1",
}


def test_a_job_is_read_from_what_gke_sets() -> None:
    read = job.of(JOB)
    assert read is not None
    assert (read.count, read.number, read.address) == (4, 3, ("head", 8479))
    assert [read.worker(number) for number in range(4)] == ["0-0", "0-1", "1-0", "1-1"]
    assert job.of({}) is None
    assert job.of({"XLA_HARNESS_RENDEZVOUS": "head:8479"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_HARNESS_RENDEZVOUS", "head"),
        ("XLA_HARNESS_RENDEZVOUS", "head:0"),
        ("XLA_HARNESS_RENDEZVOUS", "head:99999"),
        ("MEGASCALE_NUM_SLICES", "two"),
        ("MEGASCALE_SLICE_ID", "2"),
        ("TPU_WORKER_ID", "2"),
        ("XLA_HARNESS_PATIENCE", "0"),
    ],
)
def test_what_can_not_be_is_named(name: str, value: str) -> None:
    with pytest.raises(BadInputError, match=f"{name}={value!r}: expected"):
        job.of(JOB | {name: value})
