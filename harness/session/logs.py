"""Keeps PyTorch's structured trace out of the logs that pytest captures, and names lost lines."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

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


class LogFile:
    """Has a line that ``--log-file`` can't take raise where it is logged; pytest drops it."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # pytest's own plugin is there only after all others are configured
        plugin = session.config.pluginmanager.get_plugin("logging-plugin")
        handler = getattr(plugin, "log_file_handler", None)
        if isinstance(handler, logging.FileHandler) and handler.baseFilename != os.devnull:
            handler.handleError = partial(_raise, handler)  # type: ignore[method-assign]


def _raise(handler: logging.FileHandler, record: logging.LogRecord) -> None:
    del record
    error = sys.exc_info()[1]
    if isinstance(error, OSError):
        raise OSError(error.errno, error.strerror, handler.baseFilename) from error
