"""Runs a command once, or once for each process of a job, and leaves nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from harness.errors import BadInputError
from harness.isolation import libc, post_mortem
from harness.isolation.orphans import children, kill_orphans
from harness.isolation.thread_limits import out_of_threads
from harness.isolation.watchdog import Watchdog
from harness.job.rank_output import Output

LATE = 124  # as timeout(1) says it
_AFTER_FAILURE = 3.0  # seconds for the others to fail of it too, and to say where they are
_AFTER_SIGTERM = 5.0
_LOOK = 1.0


@dataclass(frozen=True)
class CommandEnding:
    """End of a command.

    Attributes:
        code: the exit code, as a shell reports it; that of the first process that failed, LATE when
            some were still running at the deadline.
        why: an explanation to print; "" if none is needed.
    """

    code: int
    why: str = ""


def no_leave(code: int) -> None:
    """Wait for nobody: all processes of the job are this command's."""
    del code


def run_command(
    words: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    deadline: float | None,
    respite: Callable[[Mapping[int, int]], float | None] = lambda _: None,
    leave: Callable[[int], None] = no_leave,
) -> CommandEnding:
    """Run the command with each of these environments, and wait for all of them.

    One process has this one's input and output. The output of several goes line by line to this
    one's, with the rank in front. When one fails, the others end. Whatever they have started ends
    with them, also on Ctrl-C, SIGTERM and SIGHUP; at the last two it is said where they are.

    Args:
        words: the program and its arguments.
        environments: all variables of each process.
        deadline: in seconds, for all together; None for none.
        respite: asked about once a second, with the process ID of each rank that still runs: in
            how many seconds they are ended, since they can't go on together; None while they can.
            Until then each of them may fail, or end well if it has caught the error of that.
        leave: called with the exit code before what they have started ends, if nobody stops them.

    Raises:
        BadInputError: there is no such program, or it can't be started.
    """
    libc.adopt_orphans()
    watchdog = Watchdog()
    others = children()
    handlers = {each: signal.signal(each, _stop) for each in (signal.SIGTERM, signal.SIGHUP)}
    job = _Processes(respite)
    try:
        for environment in environments:
            job.start(words, {**environment, **watchdog.environment}, len(environments))
        ending = job.wait(deadline)
        leave(ending.code)
    except KeyboardInterrupt:
        return CommandEnding(128 + signal.SIGINT)
    except _Stopped as stop:
        return job.ending_of_running(128 + stop.signal, f"at {stop.signal.name}")
    else:
        return ending
    finally:
        try:
            job.end()
        finally:
            kill_orphans(others)
            watchdog.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)


class _Stopped(BaseException):
    """A signal that ends this command, such as that of ``timeout(1)`` or ``scancel``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def _stop(number: int, frame: object) -> NoReturn:
    del frame
    raise _Stopped(number)


class _Processes:
    """The processes of one job, by their ranks."""

    def __init__(self, respite: Callable[[Mapping[int, int]], float | None]) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._ended: list[int] = []  # ranks, in the order in which that was seen
        # Why the processes are stuck is said before what they say of it.
        self._respite, self._output = respite, Output(lambda: respite({}) is not None)

    def start(self, words: Sequence[str], environment: Mapping[str, str], count: int) -> None:
        """Start the next of ``count`` processes."""
        pipe = None if count == 1 else subprocess.PIPE
        try:
            started = subprocess.Popen(
                words,
                env=environment,
                stdin=None if count == 1 else subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                preexec_fn=libc.DieWithParent(),  # noqa: PLW1509  # there is no other thread
            )
        except BlockingIOError as error:
            who = f"rank {len(self._started)} of {count}"
            raise BadInputError(f"{who} can't be started: {out_of_threads()}") from error
        except OSError as error:
            raise BadInputError(f"{words[0]}: expected a program: {error.strerror}") from error
        prefix = b"rank %*d | " % (len(str(count - 1)), len(self._started))
        for read, out in ((started.stdout, sys.stdout), (started.stderr, sys.stderr)):
            if read is not None:
                self._output.add(read.fileno(), prefix, out.buffer)
        self._output.wake_for(os.pidfd_open(started.pid))
        self._started.append(started)

    def wait(self, deadline: float | None) -> CommandEnding:
        """Wait until all have ended, or one has failed, or they are stuck."""
        end = time.monotonic() + deadline if deadline is not None else None
        respite = None
        while self._running() and not self._failed():
            if (respite := self._respite(self._processes())) is not None:
                break
            left = _LOOK if end is None else end - time.monotonic()
            if left <= 0:
                return self.ending_of_running(LATE, f"after {deadline:g} s")
            self._output.copy(min(left, _LOOK))
        if respite is None:
            respite = self._respite({})  # says why before it is said who failed of it
        if respite is not None:
            left = respite if end is None else end - time.monotonic()
            self._wait_for_all(min(left, respite), self._failed)
        if self._failed():
            self._wait_for_all(_AFTER_FAILURE)
        failed = self._failed()
        if not failed:
            return CommandEnding(int(bool(self._running())))
        first = failed[0]
        code = self._code(first)
        assert code is not None
        if len(self._started) == 1:  # it has said itself what it has to say
            return CommandEnding(code)
        # JAX terminates all ranks when the one with its coordination service ends, however well.
        before = sorted(self._ended[: self._ended.index(first)])
        if before:
            who = f"{self._named(before)} ended first, with exit code 0; then rank {first}"
        else:
            who = self._named([first])
        return CommandEnding(code, f"{who}: exit code {code}")

    def end(self) -> None:
        """End those that still run, and copy what all have written."""
        for rank in self._running():
            self._started[rank].terminate()
        self._wait_for_all(_AFTER_SIGTERM)
        for rank in self._running():
            self._started[rank].kill()
            self._started[rank].wait()
        self._output.flush()
        for started in self._started:
            for pipe in (started.stdout, started.stderr):
                if pipe is not None:
                    pipe.close()

    def _wait_for_all(
        self, seconds: float, is_enough: Callable[[], object] = lambda: False
    ) -> None:
        end = time.monotonic() + seconds
        while self._running() and not is_enough() and (left := end - time.monotonic()) > 0:
            self._output.copy(left)

    def ending_of_running(self, code: int, when: str) -> CommandEnding:
        """Return an ending that says where each process is that still runs."""
        running = self._running()
        stacks = [
            f"rank {rank}:\n{post_mortem.native_stack(self._started[rank].pid)}" for rank in running
        ]
        who = [f"{self._named(running)}: still running {when}"] if running else []
        return CommandEnding(code, "\n".join(who + stacks))

    def _code(self, rank: int) -> int | None:
        """Return the exit code as a shell reports it, or None while the process runs."""
        code = self._started[rank].poll()
        return 128 - code if code is not None and code < 0 else code

    def _processes(self) -> dict[int, int]:
        return {rank: self._started[rank].pid for rank in self._running()}

    def _running(self) -> list[int]:
        """Return the ranks that still run, and note which have ended since."""
        left = [rank for rank in range(len(self._started)) if rank not in self._ended]
        ended = [rank for rank in left if self._code(rank) is not None]
        # Which of several came first is not known: none is said to have ended before a failure.
        self._ended += sorted(ended, key=lambda rank: not self._code(rank))
        return [rank for rank in left if rank not in ended]

    def _failed(self) -> list[int]:
        """Return the ranks that have failed, the first of them first."""
        self._running()
        return [rank for rank in self._ended if self._code(rank)]

    def _named(self, ranks: Sequence[int]) -> str:
        return f"rank {', '.join(map(str, ranks))} of {len(self._started)}"
