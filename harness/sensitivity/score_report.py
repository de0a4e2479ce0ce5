"""A score as a JUnit report: a history takes it, and the dashboard draws its trend."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from junitparser.junitparser import Failure, Skipped
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from harness import files
from harness.model.faults_seen import NOT_EXECUTED, PERCENT, SEEN, UNSEEN
from harness.sensitivity.score import FaultVerdict, Score, share
from harness.sensitivity.score_text import not_executed, survivor


def write_report(path: Path, score: Score, lane: str, least: int | None) -> None:
    """Write a case for each area, with its numbers.

    Args:
        path: of the report.
        score: of all areas.
        lane: where the cases ran. It is in the names: as their lane it would make this a run of it,
            in which all of its other cases are missing.
        least: the percentage from which on an area passes; None for any.
    """
    all_modules = score.in_all()
    of_modules = ".modules" if score.unit == "module" else ""
    held = all_modules or score.by_area()
    suite = TestSuite("sensitivity")  # type: ignore[no-untyped-call]
    suite.timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    for area, counts in (score.by_area() | all_modules).items():
        shares = share(counts)
        seconds = sum(result.seconds for result in score.results if result.area == area)
        case = TestCase(area, classname=f"sensitivity{of_modules}.{lane}", time=round(seconds, 3))
        # On the dashboard the modules are one area: they are no folders of cases.
        case.add_property("area", "sensitivity" if all_modules else area)
        case.add_property(SEEN, str(counts[FaultVerdict.SEEN]))
        case.add_property(UNSEEN, str(shares.unseen))
        if all_modules:
            case.add_property(NOT_EXECUTED, str(counts[FaultVerdict.NOT_EXECUTED]))
        for operator, of in score.by_operator(area).items():
            if share(of).counted:  # also where it is 0: the last number is the one that is shown
                case.add_property(f"{UNSEEN}_{operator}", str(share(of).unseen))
        if shares.percent is None:
            case.result = [Skipped("none of the planted faults counts")]
        else:
            case.add_property(PERCENT, str(round(shares.percent, 1)))
            if least is not None and shares.percent < least and area in held:
                case.result = [Failure(f"{shares.percent:.1f} % of the faults were seen")]
        if text := _missed(score, area) if all_modules else "":
            case.system_out = text
        suite.add_testcase(case)
    report = JUnitXml()
    report.add_testsuite(suite)
    report.update_statistics()  # type: ignore[no-untyped-call]
    files.write({path: report.tostring().decode()})  # type: ignore[no-untyped-call]


def _missed(score: Score, module: str) -> str:
    results = [result for result in score.results if result.area == module]
    unseen = (result for result in results if result.verdict == FaultVerdict.UNSEEN)
    return "\n".join(
        [*not_executed(results), *(line for each in unseen for line in survivor(each))]
    )
