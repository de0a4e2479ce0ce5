"""Runs cases without isolation: in pytest's own process, as --pdb does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _pytest.runner import runtestprotocol

from harness.isolation.case_environment import full_environment
from harness.isolation.case_files import CaseFiles
from harness.isolation.child import set_environment
from harness.isolation.item_result import ItemResult, exit_code
from harness.isolation.pytest_child import RUNTIME_START
from harness.isolation.threads import refuse_started_runtimes
from harness.lanes import LANES
from harness.model.case import Case
from harness.model.topology import Target
from harness.scratch import Scratch
from harness.session import subtests


class InProcess:
    """Runs all cases of one target here; what one of them created, others may use."""

    def __init__(self, config: pytest.Config, why: str) -> None:
        self._config = config
        self._why = why  # the option that asks for it
        self._target: Target | None = None
        self._scratch: Scratch | None = None
        self._files: CaseFiles | None = None

    def run(self, item: pytest.Item, case: Case, nextitem: pytest.Item | None) -> ItemResult:
        """Run the case; skip it if another target has started its runtime here."""
        if self._target not in (None, case.target):
            reason = f"this process runs {self._target}: run alone, or without {self._why}"
            item.add_marker(pytest.mark.skip(reason=reason))
        elif self._target is None:
            refuse_started_runtimes()
            self._target = case.target
        start = time.monotonic()
        if self._files is None:
            self._scratch = Scratch()
            self._files = CaseFiles.create(self._scratch)
        log = self._files.log
        before = log.read()
        with _environment(case, self._files):
            LANES[case.target.lane].preload()
            LANES[case.target.lane].prepare(case.target.topology)
            with subtests.held_back(self._config) as parts:
                try:
                    reports = runtestprotocol(item, log=False, nextitem=nextitem)
                except pytest.exit.Exception as error:
                    error.returncode = exit_code(error.returncode)
                    raise
        process = log.read()
        return ItemResult(
            reports=subtests.between(reports, parts),
            events=process.after(before),
            process=process,
            runtime_start=item.stash.get(RUNTIME_START, {}),
            wall=time.monotonic() - start,
            began=start,
        )

    def finish(self) -> None:
        """Remove the cases' files."""
        if self._scratch is not None:
            self._scratch.close()


@contextmanager
def _environment(case: Case, files: CaseFiles) -> Iterator[None]:
    before = dict(os.environ)
    lane = LANES[case.target.lane]
    set_environment({**files.environment, **full_environment(case, lane)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
