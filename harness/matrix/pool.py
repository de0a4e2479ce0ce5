"""Cells side by side, as many as there are cores, with progress and what can be kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import BadInputError
from harness.junit.properties import REUSED
from harness.junit.report import Report
from harness.lanes import LANES
from harness.matrix.cell import Cell
from harness.model.outcome import Kind
from harness.stacks.environments import Environments

Say = Callable[[str], None]
_LIVE, _PLAIN = 1.0, 30.0  # seconds between two lines of progress


@dataclass
class Done:
    """Result of running the cells."""

    cells: list[Cell]
    died: dict[str, str]  # cell to why it has no report

    @property
    def finished(self) -> list[Cell]:
        """Cells that have a report."""
        return [cell for cell in self.cells if str(cell) not in self.died]

    def check(self) -> None:
        """Raise BadInputError, naming those without a report, if there are any."""
        if self.died:
            raise BadInputError(
                f"{len(self.died)} of {len(self.cells)} cells had no answer: "
                f"{', '.join(self.died)}; the same command runs only those again"
            )


def run(
    cells: Sequence[Cell],
    environments: Environments,
    *,
    jobs: int = 0,
    fresh: bool = False,
    say: Say,
) -> Done:
    """Run all cells, ``jobs`` at a time (default: one a core); keep what is answered already.

    A cell that dies does not keep the others from running. Raises BadInputError when the tests
    are missing, an environment can't be made or another command works in the same folder.
    """
    for cell in cells:
        cell.check()
    jobs = jobs or os.cpu_count() or 1
    spare = max(1, jobs // max(len(cells), 1))
    cells = [replace(cell, workers=spare) for cell in cells]
    done = Done(list(cells), {})
    with _locked({cell.folder for cell in cells}), ThreadPoolExecutor(jobs) as pool:
        watch = _Watch(say)
        futures: dict[Future[None], Cell] = {}
        try:  # from the first submit on: Ctrl-C may come as soon as a cell runs
            for cell in _longest(cells):
                futures[pool.submit(_one, cell, environments, fresh, watch)] = cell
            _collect(futures, done, watch)
        except BaseException:
            for future in futures:
                future.cancel()
            watch.stop()
            raise
    return done


def _one(cell: Cell, environments: Environments, fresh: bool, watch: _Watch) -> None:  # noqa: FBT001
    environment = environments.create(cell.stack, watch.say)
    question = cell.asks(environment)
    # A failure may be gone the next time; what has a label runs again to find that out.
    if not fresh and cell.answers(question) and (cell.label or not cell.bad_cases()):
        watch.say(f"{cell}: kept {cell.report}")
        return
    cell = replace(cell, only=() if fresh else cell.changed(question))
    start = time.monotonic()
    process = cell.start(environment, environments.cache, fresh=fresh)
    with watch.running(cell, process):
        code = process.wait()
        if watch.stopped:
            raise BadInputError(f"{cell}: interrupted")
        counts = _counts(cell.finish(question, code))
    watch.say(f"{cell}: {counts} ({_clock(time.monotonic() - start)})")


def _collect(futures: dict[Future[None], Cell], done: Done, watch: _Watch) -> None:
    left = set(futures)
    while left:
        finished, left = wait(left, timeout=watch.interval, return_when=FIRST_COMPLETED)
        watch.look()
        for future in finished:
            if error := future.exception():
                if not isinstance(error, BadInputError):
                    raise error
                done.died[str(futures[future])] = str(error)
                watch.say(str(error))


def _longest(cells: Sequence[Cell]) -> list[Cell]:
    """Sort the cells, costly lanes first, so that all cores finish at about the same time."""
    costs = {lane: cost for cost, lane in enumerate(LANES)}
    return sorted(cells, key=lambda cell: -costs[cell.lane])


@contextmanager
def _locked(folders: set[Path]) -> Iterator[None]:
    locks = []
    try:
        for folder in sorted(folders):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise BadInputError(f"{folder}: another command is writing there") from None
            locks.append(lock)
        yield
    finally:
        for lock in locks:
            lock.release()


class _Watch:
    """Says what runs, and how far it is."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._live = sys.stderr.isatty()
        self.interval = _LIVE if self._live else _PLAIN
        self._running: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
        self._lock = threading.Lock()
        self.stopped = False

    def say(self, text: str) -> None:
        with self._lock:
            if self._live:
                sys.stderr.write("\r\x1b[K")
            self._say(text)

    @contextmanager
    def running(self, cell: Cell, process: subprocess.Popen[bytes]) -> Iterator[None]:
        with self._lock:
            self._running[str(cell)] = cell, process
            if self.stopped:
                os.killpg(process.pid, signal.SIGKILL)
        self.say(f"{cell}: running, log in {cell.log}")
        try:
            yield
        finally:
            with self._lock:
                del self._running[str(cell)]

    def look(self) -> None:
        texts = [f"{cell} {_percent(cell)}" for cell, _ in list(self._running.values())]
        if not texts:
            return
        line = ", ".join(texts)
        if self._live:
            with self._lock:
                sys.stderr.write(f"\r\x1b[K{line[:79]}")
                sys.stderr.flush()
        else:
            self.say(line)

    def stop(self) -> None:
        """End what runs: a pytest's own cases end with it."""
        with self._lock:
            self.stopped = True
            for _, process in self._running.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def _percent(cell: Cell) -> str:
    progress = cell.progress()
    if progress is None:
        return "collecting"
    done, total = progress
    return f"{100 * done // max(total, 1)} %"


def _counts(report: Report) -> str:
    counts = Counter(result.outcome for result in report.results.values())
    counted = [f"{counts[kind]} {kind}" for kind in Kind if counts[kind]]
    left_out = sum(report.left_out.values())
    reused = sum(REUSED in result.properties for result in report.results.values())
    counted += [f"{left_out} left out"] if left_out else []
    counted += [f"{reused} of them reused"] if reused else []
    return ", ".join(counted) or "no case"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
