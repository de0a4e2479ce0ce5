"""Whoever is no worker of a job neither takes part in it nor holds it up: its rendezvous, and the
exchange of values. Processes are real, and so are the connections.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import BadInputError
from harness.isolation.post_mortem import Death
from harness.isolation.ranks import RankError, fork_ranks
from harness.job import exchange, job, rendezvous, wire
from harness.job.job import Job
from harness.messages.framing import Lines
from harness.messages.jobs import FROM_FIRST
from harness.model.outcome import Kind

TOKEN, OTHER_TOKEN = "0123456789abcdef" * 4, "0" * 64
CASES = ("a.py::a", "a.py::b", "a.py::c")
DIGEST = wire.digest("\n".join(CASES))
PATIENCE = 10  # seconds until nobody will listen any more
LONG = 100  # seconds, which nothing here takes
HELD = 2 * wire.STRANGERS  # more than are kept, and as many as may wait


def line(kind: str, /, **values: object) -> bytes:
    """What a message of that type looks like, whatever its values."""
    return json.dumps({"type": kind, **values}).encode() + b"\n"


def hello(token: object = TOKEN, worker: object = 1, about: object = DIGEST) -> bytes:
    return line("Hello", token=token, worker=worker, about=about)


def at(case: object) -> bytes:
    return line("At", case=case)


def value(worker: object, forged: object = "forged") -> bytes:
    return line("Value", worker=worker, value=forged, raised=None)


# What a stranger may know: all but the token. The first ones were taken for a worker's once.
WORDS = {
    "other cases": line("Hello", worker=1, about="0"),
    "a worker's place": line("Hello", worker=1, about=DIGEST) + at(0),
    "a case far away": line("Hello", worker=1, about=DIGEST) + at(99),
    "deep lists": b"[" * 100_000 + b"\n",
    "deep objects": b'{"a":' * 100_000 + b"\n",
    "no greeting": at(0) + hello(""),
    "an empty token": hello("") + at(0),
    "another token": hello(OTHER_TOKEN) + at(0),
    "half a token": hello(TOKEN[:32]) + at(0),
    "no text for a token": hello("\ud800\u0000é"),
    "a list for a token": hello([TOKEN]),
    "a long line": b"a" * 1_000_000,
    "a long number": b'{"worker": ' + b"1" * 5_000 + b"}\n",
    "no JSON": b"GET / HTTP/1.1\r\n\r\n",
    "no object": b"[]\n1\nnull\n\n",
    "no UTF-8": b'{"token": "\xff\xfe"}\n',
    "UTF-16": '{"token": ""}\n'.encode("utf-16"),
    "half a line": b'{"token": "',
    "nothing": b"",
}


@pytest.fixture
def jobs() -> list[Job]:
    return jobs_of(2)


def jobs_of(count: int) -> list[Job]:
    """The job of so many slices, as each of its workers has it."""
    environment = {
        "XLA_HARNESS_RENDEZVOUS": f"127.0.0.1:{two_ports()}",
        "XLA_HARNESS_JOB_TOKEN": TOKEN,
        "MEGASCALE_NUM_SLICES": str(count),
    }
    jobs = [job.of(environment | {"MEGASCALE_SLICE_ID": str(n)}) for n in range(count)]
    return [each for each in jobs if each is not None]


def two_ports() -> int:
    """A free port before a free one, of those that no connection gets for its own end."""
    for port in random.Random(os.getpid()).sample(range(15000, 30000), 100):
        with suppress(OSError), ExitStack() as held:
            for each in (port, port + 1):
                held.enter_context(socket.create_server(("127.0.0.1", each)))
            return port
    raise AssertionError("no free ports")


def knock(where: Job, words: bytes, ahead: int = 0) -> socket.socket:
    """A connection, once somebody listens, that has said those words.

    Raises ConnectionRefusedError when nobody does: a process that starts late on a busy machine
    may find that the first worker has been there and has gone.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            made = socket.create_connection((where.address[0], where.address[1] + ahead), LONG)
        except ConnectionRefusedError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.01)
            continue
        made.setblocking(False)
        with suppress(OSError):
            made.sendall(words)
        return made


def other(own: Job) -> rendezvous.Other:
    return rendezvous.Other(own, CASES, time.monotonic() + LONG)


def meet_all(worker: rendezvous.Rendezvous) -> list[Death | None]:
    return [worker.meet(number, LONG) for number in range(len(CASES))]


@pytest.mark.parametrize("words", WORDS)
def test_what_a_stranger_says_is_nothing_to_the_workers(jobs: list[Job], words: str) -> None:
    def rank(number: int) -> list[Death | None]:
        if number:
            return meet_all(other(jobs[1]))
        first = rendezvous.First(jobs[0], CASES)
        with knock(jobs[0], WORDS[words]), knock(jobs[0], WORDS[words]):
            return meet_all(first)

    assert fork_ranks(rank, 2, deadline=60) == [[None] * 3] * 2


@pytest.mark.parametrize("words", WORDS)
def test_a_stranger_is_no_worker(jobs: list[Job], words: str) -> None:
    """Neither one that starts, nor one that goes, nor one that has other cases."""
    first = rendezvous.First(jobs[0], CASES)
    with first._listener, knock(jobs[0], WORDS[words]):
        for case in range(2):
            death = first.meet(case, 0.01)
            assert death is not None
            assert (death.kind, death.message) == (
                Kind.HUNG,
                f"worker 1-0 never came to {CASES[case]} (0.01 s)",
            )


def flood(where: Job, ahead: int = 0) -> int:
    """Connect and talk as fast as possible until nobody listens any more; how many times."""
    pieces = random.Random(1)
    times = 0
    words = [*WORDS.values(), line("Left", case=1) * 1000]
    with suppress(ConnectionRefusedError, ConnectionResetError):
        knock(where, b"", ahead).close()
        while True:
            address = (where.address[0], where.address[1] + ahead)
            with socket.create_connection(address, LONG) as made, suppress(OSError):
                made.settimeout(0.05)
                made.sendall(pieces.choice(words))
            times += 1
    return times


def test_a_flood_holds_no_deadline(jobs: list[Job]) -> None:
    """It ends when the first worker does, not the other way round."""

    def rank(number: int) -> str | int:
        if number:
            return flood(jobs[0])
        death = rendezvous.First(jobs[0], CASES).meet(0, 0.5)
        return death.message if death else ""

    message, *floods = fork_ranks(rank, 4, deadline=60)
    assert message == "worker 1-0 never came to a.py::a (0.5 s)"
    assert sum(floods) > wire.STRANGERS


def test_one_endless_talker_holds_no_deadline(jobs: list[Job]) -> None:
    def rank(number: int) -> str:
        if number == 0:
            death = rendezvous.First(jobs[0], CASES).meet(0, 0.5)
            return death.message if death else ""
        with suppress(OSError), knock(jobs[0], b"") as made:
            made.setblocking(True)
            while True:
                made.sendall(line("Left", case=1) * 1000)
        return ""

    messages = fork_ranks(rank, 2, deadline=60)
    assert messages == ["worker 1-0 never came to a.py::a (0.5 s)", ""]


def test_a_flood_keeps_no_worker_out(jobs: list[Job]) -> None:
    def rank(number: int) -> list[Death | None] | int:
        if number == 0:
            return meet_all(rendezvous.First(jobs[0], CASES))
        if number == 1:
            time.sleep(0.3)
            return meet_all(other(jobs[1]))
        return flood(jobs[0])

    assert fork_ranks(rank, 4, deadline=60)[:2] == [[None] * 3] * 2


def test_connections_held_open_keep_no_worker_out(jobs: list[Job]) -> None:
    def rank(number: int) -> list[Death | None]:
        if number:
            return meet_all(other(jobs[1]))
        first = rendezvous.First(jobs[0], CASES)
        with ExitStack() as held:
            for _ in range(HELD):
                held.enter_context(knock(jobs[0], b'{"token": "'))
            met = meet_all(first)
            assert len(first._listener._strangers) <= wire.STRANGERS
        return met

    assert fork_ranks(rank, 2, deadline=60) == [[None] * 3] * 2


def test_strangers_hold_no_descriptor_that_a_worker_needs(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_STRANGER_SECONDS", LONG)

    def rank(number: int) -> list[Death | None]:
        if number:
            with ExitStack() as held:
                for _ in range(HELD // 2):
                    held.enter_context(knock(jobs[0], b"{"))
                return meet_all(other(jobs[1]))
        first = rendezvous.First(jobs[0], CASES)
        used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
        tenth_free = [number for number in range(1000) if number not in used][9]
        resource.setrlimit(resource.RLIMIT_NOFILE, (tenth_free + 1, tenth_free + 1))
        return meet_all(first)

    assert fork_ranks(rank, 2, deadline=30) == [[None] * 3] * 2


def test_a_stranger_has_little_time(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_STRANGER_SECONDS", 0.01)
    with wire.Listener(jobs[0].address[1], jobs[0], 1000) as listener, knock(jobs[0], b"{") as made:
        made.settimeout(LONG)
        while listener.hear(0.01) or listener._strangers or made.recv(1) != b"":
            pass


@pytest.mark.measures_coverage
def test_a_workers_place_is_taken_once(jobs: list[Job]) -> None:
    """A second connection of the same worker is refused, and the first one stays."""

    def rank(number: int) -> list[Death | None]:
        if number == 0:
            return meet_all(rendezvous.First(jobs[0], CASES))
        real = other(jobs[1])
        met = [real.meet(0, LONG)]
        end = time.monotonic() + 0.3
        assert wire.join(jobs[1].address[1], jobs[1], DIGEST, 1000, end) is None
        return [*met, *(real.meet(number, LONG) for number in (1, 2))]

    assert fork_ranks(rank, 2, deadline=60) == [[None] * 3] * 2


@pytest.mark.measures_coverage
def test_a_worker_of_another_job_is_told_so() -> None:
    ours = jobs_of(2)[0]

    def rank(number: int) -> str:
        if number == 0:
            death = rendezvous.First(ours, CASES).meet(0, 0.5)
            return death.message if death else ""
        environment = {
            "XLA_HARNESS_RENDEZVOUS": f"127.0.0.1:{ours.address[1]}",
            "XLA_HARNESS_JOB_TOKEN": OTHER_TOKEN,
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "1",
        }
        theirs = job.of(environment)
        assert theirs is not None
        with pytest.raises(BadInputError) as raised:
            other(theirs)
        return str(raised.value)

    messages = fork_ranks(rank, 2, deadline=60)
    assert messages == [
        "worker 1-0 never came to a.py::a (0.5 s)",
        (
            "XLA_HARNESS_JOB_TOKEN: worker 0-0 refused worker 1-0: expected the same on all "
            "workers of the job"
        ),
    ]


# A worker with the token is checked no less. True is no number.
UNKNOWN: list[object] = [99, 3, -1, True, 1.0, "0", None, [0], 10**30]


@pytest.mark.parametrize("number", UNKNOWN, ids=str)
def test_a_worker_at_no_case_is_dropped(jobs: list[Job], number: object) -> None:
    first = rendezvous.First(jobs[0], CASES)
    with first._listener, knock(jobs[0], hello() + at(number)):
        for case in range(2):
            death = first.meet(case, 0.01)
            assert death is not None
            assert death.message == "worker 1-0 is gone: its connection was lost"


@pytest.mark.measures_coverage
@pytest.mark.parametrize("number", [*UNKNOWN, 0, 2], ids=str)
def test_a_worker_with_no_number_of_the_job_is_a_stranger(jobs: list[Job], number: object) -> None:
    first = rendezvous.First(jobs[0], CASES)
    with first._listener, knock(jobs[0], hello(worker=number) + at(0)):
        death = first.meet(0, 0.01)
        assert death is not None
        assert death.kind == Kind.HUNG


PIECES = [
    *WORDS.values(),
    *(hello(worker=number) for number in (1, 0, 2, True)),
    *(at(number) for number in (0, 1, 2, 99, -1, True)),
    line("Left", case=0),
    line("Welcome"),
    line("Go", case=0),
    line("Go", case=True),
    line("Late", case=2),
    line("Late", case=99),
    line("Late", case="1"),
    line("No", case=0, why="why", kind="hung"),
    line("No", case=0, why="why", kind="passed"),
    line("No", case=0, why="why", kind="none such"),
    line("No", case=0, why=1, kind=[]),
    line("WorkerLost", why="lost"),
    line("WorkerLost", why=[]),
    line("Stop", why="why"),
    line("Stop", why=1),
    line("All"),
    line("All", more=1),
    line("Nothing"),
    value(0),
    value(99),
    line("Value", worker=1, value=1, raised=1),
    b"\n",
    b"\\",
    b'"',
]
SCRIPTS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=6).map(b"".join)
FUZZED_JOB = jobs_of(2)
FUZZED = settings(derandomize=True, database=None, max_examples=200)


@FUZZED
@given(scripts=st.lists(SCRIPTS, min_size=1, max_size=3))
@example(scripts=[WORDS["other cases"]])
@example(scripts=[WORDS["a case far away"]])
@example(scripts=[WORDS["deep lists"]])
def test_the_first_worker_survives_whatever_is_said(scripts: list[bytes]) -> None:
    """It answers for each case; only who has the token can have other cases."""
    first = rendezvous.First(FUZZED_JOB[0], CASES)
    with ExitStack() as held, suppress(BadInputError):
        held.enter_context(first._listener)
        for script in scripts:
            held.enter_context(knock(FUZZED_JOB[0], script))
        for case in range(len(CASES)):
            death = first.meet(case, 0)
            trusted = any(TOKEN.encode() in script for script in scripts)
            assert trusted or (death is not None and "never came" in death.message)
        return
    assert any(TOKEN.encode() in script for script in scripts)


@FUZZED
@given(script=SCRIPTS)
def test_other_workers_survive_whatever_is_said(script: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "join", lambda *_: wire.Connection(ours, Lines(FROM_FIRST, 1 << 16)))
        worker = other(FUZZED_JOB[1])
        theirs.setblocking(False)
        with suppress(OSError):
            theirs.sendall(script)
        theirs.shutdown(socket.SHUT_WR)
        with suppress(BadInputError):
            for case in range(len(CASES)):
                death = worker.meet(case, LONG)
                assert death is None or death.kind in (Kind.HUNG, Kind.CRASHED, Kind.FAILED)


@FUZZED
@given(script=SCRIPTS)
def test_a_value_is_one_of_a_worker(script: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        with suppress(OSError):
            theirs.sendall(script)
        theirs.shutdown(socket.SHUT_WR)
        connection = wire.Connection(ours, Lines(FROM_FIRST, 1 << 16))
        values = exchange._told(FUZZED_JOB[1], connection, time.monotonic() + LONG)
        assert values is None or set(values) <= {0, 1}


def exchanged(
    jobs: list[Job], strangers: Callable[[], ExitStack], seconds: float = LONG
) -> list[object]:
    """What each worker has of the others, when strangers are there before the second one."""

    def rank(number: int) -> object:
        if number == 0:
            return exchange.exchange(lambda: "zero", jobs[0], seconds)
        with strangers():
            return exchange.exchange(lambda: ["one", number], jobs[number], seconds)

    return fork_ranks(rank, len(jobs), deadline=60)


CASE = wire.digest("")
VALUE_WORDS = WORDS | {
    "a worker's value": value(1),
    "the first worker's value": value(0),
    "a value of no worker": value(99),
    "no value": line("Value", worker=1),
    "another token's value": hello(OTHER_TOKEN, about=CASE) + value(1),
}


@pytest.mark.measures_coverage
@pytest.mark.parametrize("words", VALUE_WORDS)
def test_a_strangers_value_is_none(jobs: list[Job], words: str) -> None:
    os.environ.pop("PYTEST_CURRENT_TEST")  # as the words have it; pytest sets it anew

    def strangers() -> ExitStack:
        held = ExitStack()
        for _ in range(2):
            held.enter_context(knock(jobs[0], VALUE_WORDS[words], 1))
        return held

    assert exchanged(jobs, strangers) == [["zero", ["one", 1]]] * 2


def test_a_worker_at_another_case_is_not_heard(jobs: list[Job]) -> None:
    def strangers() -> ExitStack:
        held = ExitStack()
        held.enter_context(knock(jobs[0], hello(about="0") + value(1, "earlier"), 1))
        return held

    assert exchanged(jobs, strangers) == [["zero", ["one", 1]]] * 2


@pytest.mark.measures_coverage
def test_a_value_that_is_too_deep_is_its_workers_error(jobs: list[Job]) -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]

    def rank(number: int) -> str:
        with pytest.raises(RankError) as raised:
            exchange.exchange(lambda: deep if number else 0, jobs[number], LONG)
        return str(raised.value)

    for message in fork_ranks(rank, 2, deadline=60):
        assert message.startswith("worker 1-0 raised\nTraceback")
        assert "expected JSON with at most 64 levels" in message


def test_who_tells_no_value_in_time_is_named_in_a_flood(jobs: list[Job]) -> None:
    def rank(number: int) -> str | int:
        if number:
            return flood(jobs[0], 1)
        with pytest.raises(RankError) as raised:
            exchange.exchange(lambda: 0, jobs[0], 0.5)
        return str(raised.value)

    assert fork_ranks(rank, 3, deadline=60)[0] == "worker 1-0 told no value in 0.5 s"


WITHOUT = {"XLA_HARNESS_RENDEZVOUS": "head:1", "MEGASCALE_NUM_SLICES": "2"}


@pytest.mark.parametrize("token", ["", "short", TOKEN[:31], "A" * 32, "0" * 129, TOKEN + "\n"])
def test_a_job_without_a_token_is_refused(token: str) -> None:
    with pytest.raises(BadInputError, match="expected 32 to 128 hexadecimal digits") as raised:
        job.of(WITHOUT | {"XLA_HARNESS_JOB_TOKEN": token})
    assert str(raised.value).startswith("XLA_HARNESS_JOB_TOKEN is not ")
    assert not token or token not in str(raised.value)


def test_the_token_is_not_shown(jobs: list[Job]) -> None:
    assert TOKEN not in repr(jobs)
