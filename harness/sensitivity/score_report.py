"""A score as a JUnit report: a history takes it, and the dashboard draws its trend."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from junitparser.junitparser import Failure, Skipped
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from harness import files
from harness.model.faults_seen import PERCENT, SEEN, UNSEEN
from harness.sensitivity.score import FaultVerdict, Score, share


def write_report(path: Path, score: Score, lane: str, least: int | None) -> None:
    """Write a case for each area, with its numbers.

    Args:
        path: of the report.
        score: of all areas.
        lane: where the cases ran. It is in the names: as their lane it would make this a run of it,
            in which all of its other cases are missing.
        least: the percentage from which on an area passes; None for any.
    """
    suite = TestSuite("sensitivity")  # type: ignore[no-untyped-call]
    suite.timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    for area, counts in score.by_area().items():
        shares = share(counts)
        seconds = sum(result.seconds for result in score.results if result.area == area)
        case = TestCase(area, classname=f"sensitivity.{lane}", time=round(seconds, 3))
        case.add_property("area", area)
        case.add_property(SEEN, str(counts[FaultVerdict.SEEN]))
        case.add_property(UNSEEN, str(counts[FaultVerdict.UNSEEN]))
        for operator, of in score.by_operator(area).items():
            if share(of).counted:  # also where it is 0: the last number is the one that is shown
                case.add_property(f"{UNSEEN}_{operator}", str(of[FaultVerdict.UNSEEN]))
        if shares.percent is None:
            case.result = [Skipped("none of the planted faults counts")]
        else:
            case.add_property(PERCENT, str(round(shares.percent, 1)))
            if least is not None and shares.percent < least:
                case.result = [Failure(f"{shares.percent:.1f} % of the faults were seen")]
        suite.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(suite)
    report.update_statistics()  # type: ignore[no-untyped-call]
    files.write({path: report.tostring().decode()})  # type: ignore[no-untyped-call]
