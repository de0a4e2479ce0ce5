"""Seals the report that pytest writes, or removes half of one."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.junitxml import LogXML, xml_key

from harness.junit.seal import seal
from harness.scratch import remove
from harness.session.refusal import refuse


# Within the wrapper of pytest's terminal, which then shows its summary.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Seal the report that pytest has written; half a report is removed."""
    junit = session.config.stash.get(xml_key, None)
    result = None
    try:
        result = yield
        if junit is not None:
            seal(Path(junit.logfile))
    except OSError as error:
        if junit is None or not _is_of_report(error):
            raise
        path = Path(junit.logfile)
        if path.is_file():
            remove(path)
        del session.config.stash[xml_key]
        session.config.pluginmanager.unregister(junit)  # it would say that it has made the file
        refuse(session, f"{path}: can't be written: {error.strerror}")
    return result


def _is_of_report(error: OSError) -> bool:
    """Return whether pytest or the seal was writing the report."""
    writers = (LogXML.pytest_sessionfinish.__code__, seal.__code__)
    return any(frame.f_code in writers for frame, _ in traceback.walk_tb(error.__traceback__))
