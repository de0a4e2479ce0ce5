"""A test's subtests: what they say together, in the report of the test itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from _pytest.subtests import failed_subtests_key

from harness.isolation.pytest_child import is_phase
from harness.session.reports import is_strict_pass, skip, skip_reason


def absorb(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    """Have the test's own report say what its subtests come to, before the case is judged.

    pytest lets a test pass whose subtests all skip, or fail as a marker of its own expects. Here
    the first is skipped, and the second an expected failure. A subtest that fails is left alone.
    """
    parts, call = _split(reports)
    if call is None or not (call.passed or is_strict_pass(call)):
        return
    leaves = _leaves(parts)
    if any(part.failed for part in parts) or not leaves:
        return
    expected = [part for part in leaves if _is_expected(part)]
    if expected:
        _expect(call, expected[0].wasxfail)
    elif all(part.skipped for part in leaves):
        skip(item, call, "; ".join(dict.fromkeys(map(skip_reason, leaves))))


def conclude(reports: Sequence[pytest.TestReport]) -> None:
    """Have the test's own report say how its subtests were judged.

    Otherwise ``--lf`` and ``--stepwise`` would take the test for one that passed.
    """
    parts, call = _split(reports)
    if call is None or not call.passed:
        return
    failed = sum(part.failed for part in parts)
    expected = next(filter(_is_expected, parts), None)
    if failed:
        call.outcome = "failed"
        call.longrepr = f"contains {failed} failed subtest{'s' * (failed > 1)}"
    elif expected is not None:
        _expect(call, expected.wasxfail)


@contextmanager
def held_back(config: pytest.Config) -> Iterator[list[pytest.TestReport]]:
    """Collect what is reported meanwhile, which subtests do at once, before anybody hears of it."""
    reports = list[pytest.TestReport]()
    collector = _Collector(reports)
    config.pluginmanager.register(collector)
    hook = config.hook.pytest_runtest_logreport
    everybody = hook.get_hookimpls()
    hook._hookimpls[:] = [each for each in everybody if each.plugin is collector]
    try:
        yield reports
    finally:
        hook._hookimpls[:] = everybody
        config.pluginmanager.unregister(collector)
        # By this pytest's terminal would fail a test whose subtests fail as declared.
        config.stash[failed_subtests_key].clear()


def between(
    phases: Sequence[pytest.TestReport], parts: Sequence[pytest.TestReport]
) -> list[pytest.TestReport]:
    """Return the reports of a test's phases with its subtests' before its own."""
    call = next((n for n, report in enumerate(phases) if report.when == "call"), len(phases))
    return [*phases[:call], *parts, *phases[call:]]


class _Collector:
    """The plugin of ``held_back``."""

    def __init__(self, reports: list[pytest.TestReport]) -> None:
        self._reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)


def _split(
    reports: Sequence[pytest.TestReport],
) -> tuple[list[pytest.TestReport], pytest.TestReport | None]:
    """Return the subtests' reports, and that of the test itself, which comes after them."""
    parts = [report for report in reports if not is_phase(report)]
    calls = (report for report in reports if report.when == "call" and is_phase(report))
    return parts, next(calls, None)


def _leaves(parts: Sequence[pytest.TestReport]) -> list[pytest.TestReport]:
    """Return the subtests without those that pass and hold others, which say what these say."""
    return [
        part
        for n, part in enumerate(parts)
        if not (part.passed and any(_holds(part, other) for other in parts[:n]))
    ]


def _holds(outer: pytest.TestReport, inner: pytest.TestReport) -> bool:
    # unittest's subtests have no times, and it reports no outer one whose inner one is skipped
    return outer.start < outer.stop and outer.start <= inner.start and inner.stop <= outer.stop


def _is_expected(report: pytest.TestReport) -> bool:
    return report.skipped and hasattr(report, "wasxfail")


def _expect(call: pytest.TestReport, reason: str) -> None:
    call.outcome, call.longrepr, call.wasxfail = "skipped", None, reason
