"""Choose the number of pytest-xdist workers if the command line names none: ini xla_workers."""

from __future__ import annotations

import os
from argparse import Namespace

import pytest

from harness.errors import BadInputError
from harness.job import job

CORES = "cores"
_AT_A_TIME = 1  # case: with two, quick cases pile up, as each that ends brings two


def choose(early_config: pytest.Config) -> None:
    """Use as many workers as ini xla_workers says, unless the command line decides it.

    This happens before other plugins read the command line, as pytest-cov measures workers only
    if it knows of them at its start.
    """
    options = early_config.known_args_namespace
    if getattr(options, "numprocesses", 0) is not None or options.tx:
        return
    try:
        count = workers(early_config.getini("xla_workers"))
        if _needs_one_process(options):
            return
    except BadInputError:
        return  # Settings.of reports it
    if count:
        options.numprocesses = early_config.option.numprocesses = count


def keep_order(config: pytest.Config) -> None:
    """Give workers a case at a time, so that those that are to run first do.

    pytest-xdist would hand the first worker an eighth of all cases, and the second one the next.
    Now each of them holds two: the case that runs and the next.
    """
    if getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = _AT_A_TIME


def workers(text: str) -> int | str:
    """Return a number of workers for pytest-xdist's ``-n``; raises BadInputError."""
    if text == CORES:
        return "logical"  # which pytest-xdist counts, or another plugin's hook
    if text.isascii() and text.isdecimal():
        return int(text)
    if text:
        raise BadInputError(f"ini xla_workers: {text!r}: expected {CORES} or a number")
    return 0


def _needs_one_process(options: Namespace) -> bool:
    """Return whether somebody looks into the run, or too little of it is left to share.

    A debugger and ``-s`` need the terminal, which no worker has. Each worker imports the
    frameworks and collects the tests: that takes longer than a few tests that are named.
    """
    debugs = options.usepdb or options.trace or options.capture == "no"
    breaks = os.environ.get("PYTHONBREAKPOINT", "0") not in ("", "0")
    paths = options.file_or_dir
    named = bool(paths) and all("::" in path for path in paths)
    return bool(debugs or breaks or named or options.collectonly or job.current() is not None)
