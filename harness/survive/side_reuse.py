"""Reuse of a whole side: its tests share processes, so none of them can be reused alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.junit.result import Result
from harness.model.outcome import Kind
from harness.reuse.result_store import ResultStore
from harness.survive.side import SideProcess, SideRun

_SIDES = "sides"  # kind of stored objects
_ANSWERS = (0, 1)  # of pytest: passed, failed


class SideReuse:
    """Returns the stored result of a side while nothing has changed, and stores a new one."""

    def __init__(
        self,
        process: SideProcess,
        store: ResultStore,
        dependencies: Callable[[], Mapping[str, str]],
        *,
        fresh: bool,
    ) -> None:
        self.process, self._store, self._fresh = process, store, fresh
        self._dependencies = dependencies
        place = [str(Path.cwd()), str(process.python), *process.arguments]
        self._key = hashlib.sha256(json.dumps(place).encode()).hexdigest()

    def run(self, limit: float = math.inf) -> SideRun:
        """Return the stored result, with its failures measured again, or run all tests."""
        before = self._dependencies()
        stored = None if self._fresh else self._stored(before)
        name = self.process.name
        if stored is not None and self._fails_again(stored, limit):
            self.process.say(f"{name}: reused, measured at {stored.reused}")
            self.process.show(stored)
            return stored
        self.process.say(f"{name}: running the tests")
        run = self.process.run(limit=limit)
        if before and _is_reusable(run) and self._dependencies() == before:
            now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            self._store.write(_SIDES, self._key, [before, now, run.recorded])
            self._store.prune()
        else:
            self.forget()
        self.process.say(f"{name}: {len(run.results)} tests in {run.seconds:.0f} s")
        return run

    def forget(self) -> None:
        """Remove the stored result, such as one of a test that is flaky."""
        self._store.remove(_SIDES, self._key)

    def _stored(self, now: Mapping[str, str]) -> SideRun | None:
        record = self._store.read(_SIDES, self._key)
        if record is None:
            return None
        before, time, recorded = record
        changes = (name for name in {**before, **now} if before.get(name) != now.get(name))
        if change := next(changes, ""):
            self.process.say(f"{self.process.name}: {change} changed since {time}")
            return None
        return SideRun.of(recorded, reused=time)

    def _fails_again(self, stored: SideRun, limit: float) -> bool:
        """Run the tests that failed; if they fail again, take their new results."""
        failed = [each for each, result in stored.results.items() if result.outcome.is_bad]
        files = [each for each, result in stored.uncollected.items() if result.outcome.is_bad]
        if failed or files:
            self.process.say(f"{self.process.name}: running {len(failed)} tests that failed again")
            again = self.process.run(failed, limit)
            results = {each: again.results.get(each, Result(each)) for each in failed}
            if any(results[each].outcome != stored.results[each].outcome for each in failed):
                return False
            if any(each not in again.uncollected for each in files):
                return False
            stored.results |= results
        return True


def _is_reusable(run: SideRun) -> bool:
    return (
        not run.cut
        and run.code in _ANSWERS
        and not any(each.outcome in (Kind.CRASHED, Kind.HUNG) for each in run.results.values())
        and run.platforms in ([], ["cpu"])
        and not any(each["devices"] for each in run.processes)
    )
