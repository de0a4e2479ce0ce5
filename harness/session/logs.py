"""Keeps PyTorch's structured trace out of the logs that pytest captures of a case."""

from __future__ import annotations

import logging

import pytest
from _pytest.logging import LogCaptureHandler

from harness.session.fixtures import CASE

_TRACE = "torch.__trace"


class TraceFilter:
    """Takes pytest's handlers off torch's trace logger, before each phase of a case.

    That logger writes empty messages, whose content is in attributes for a handler of torch's own.
    pytest attaches its handlers to every logger that does not propagate: each compilation of torch
    then adds dozens of empty lines to the report, and torch collects what nobody reads.
    """

    @pytest.hookimpl(tryfirst=True)  # behind the wrapper that attaches them
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        _detach(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        _detach(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        _detach(item)


def _detach(item: pytest.Item) -> None:
    logger = logging.root.manager.loggerDict.get(_TRACE)
    if CASE not in item.stash or not isinstance(logger, logging.Logger):
        return
    for handler in list(logger.handlers):
        if isinstance(handler, LogCaptureHandler):
            logger.removeHandler(handler)
