"""What the candidate does to each test, and the proof that the tests had loaded it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import BadInputError
from harness.junit.result import Result
from harness.model.case_id import file_of
from harness.model.outcome import Answer, Kind
from harness.survive.side import SideRun, result_of
from harness.verdicts.costs import Cost
from harness.verdicts.finding import Finding
from harness.verdicts.words import Verdict, change

_TIMES = 10  # that a test takes longer
_LEAST = 1.0  # s that it takes then
_PASSED_THROUGH = re.compile(r"(jax|jaxlib|_pytest|pluggy)/|/.*/lib/python3")
BAD = (Verdict.REGRESSED, Verdict.MISSING, Verdict.NEW_FAILURE, Verdict.SLOWER)


def findings(base: SideRun, candidate: SideRun) -> list[Finding]:
    """Return a finding for each test of either side, and each module that can't be imported."""
    was, now = dict(base.results), _with_files(candidate, base)
    for file, result in base.uncollected.items():
        if result.outcome.is_bad:
            was[file] = result
            if any(file_of(each) == file for each in candidate.results):
                now[file] = Result(file, outcome=Kind.PASSED)
    return [_finding(each, was.get(each), now.get(each)) for each in {**was, **now}]


def _with_files(candidate: SideRun, base: SideRun) -> dict[str, Result]:
    """Return the results; a test whose module can't be imported fails as the module does."""
    results = dict(candidate.results)
    failures = dict(candidate.uncollected)
    if not results and not failures:  # as when the root's conftest.py can't be imported
        entry = {"text": candidate.output}
        failures[""] = result_of("", Kind.FAILED, 0, entry)
    for node, result in failures.items():
        below = (f"{node}::", f"{node}/") if node not in ("", ".") else ("",)
        tests = [each for each in base.results if each.startswith(below)]
        for each in tests or [node]:
            results.setdefault(each, replace(result, id=each))
    return results


def _finding(each: str, was: Result | None, now: Result | None) -> Finding:
    before, after = (result.outcome.answer if result else None for result in (was, now))
    verdict = change(before, after)
    if after is None and before is not Answer.WORKS:
        verdict = Verdict.UNCHANGED  # what failed and is not there any more is nobody's loss
    shown = now if now and now.signature else was if verdict == Verdict.FIXED else None
    message = shown.message if shown else ""
    if verdict == Verdict.MISSING:
        message = f"skipped: {now.message}" if now else "not collected, or not reached"
    place = _raised_in(shown) if shown else ""
    costs = slower(was, now)
    if costs and verdict == Verdict.UNCHANGED:
        verdict = Verdict.SLOWER
    return Finding(
        key=each,
        case=each,
        verdict=verdict,
        outcome=now.outcome if now else "",
        expected=after is Answer.EXPECTED,
        message=message,
        layer=shown.layer if shown else "",
        signature=shown.signature if shown else message,
        note=f"in {place}" if place else "",
        costs=costs if verdict == Verdict.SLOWER else (),
    )


def _raised_in(result: Result) -> str:
    """Return the innermost function below the test that is neither jax's, pytest's nor Python's."""
    places = result.properties["places"].splitlines()
    first = next((place for place in places if not _PASSED_THROUGH.match(place)), "")
    is_own = f"/{first}".rpartition("::")[0].endswith(f"/{file_of(result.id)}")
    return "" if is_own else first


def slower(was: Result | None, now: Result | None) -> tuple[Cost, ...]:
    """Return what a test that works on both takes, if that is ten times as long as before."""
    if not (was and now and was.works and now.works and now.duration >= _LEAST):
        return ()
    if now.duration < _TIMES * was.duration:
        return ()
    return (Cost("time", round(was.duration, 2), round(now.duration, 2), "s"),)


def is_bad(each: Finding) -> bool:
    """Return whether the candidate is worse; a failure that pytest's own marker expects is not."""
    return each.verdict in BAD and not each.expected


def in_question(each: Finding) -> bool:
    """Return whether a rerun may change the verdict."""
    return is_bad(each) and each.verdict != Verdict.MISSING


def confirmed(first: Collection[Finding], base: SideRun, candidate: SideRun) -> Iterator[Finding]:
    """Yield the findings with what a rerun of those in question on both sides says."""
    was, now = base.results, _with_files(candidate, base)
    for each in first:
        before, after = was.get(each.key), now.get(each.key)
        if not in_question(each):
            yield each
        elif each.verdict == Verdict.SLOWER:
            costs = slower(before, after)
            yield each if costs else replace(each, verdict=Verdict.UNCHANGED, costs=())
        elif after is not None and after.works:
            yield _flaky(each, "passed with the candidate when it was run again")
        elif each.verdict == Verdict.REGRESSED and before is not None and not before.works:
            yield _flaky(each, f"{before.outcome} on the base when it was run again")
        else:
            yield each


def _flaky(each: Finding, note: str) -> Finding:
    return replace(each, verdict=Verdict.FLAKY, note=note)


@dataclass(frozen=True)
class Proof:
    """Which version of a package the test processes had loaded."""

    package: str
    version: str
    place: str
    processes: int
    of: int


def proof(
    run: SideRun, package: str, modules: set[str], version: str, within: Path | None
) -> Proof | None:
    """Return the proof that the tests had loaded this version, from the environment ``within``.

    None if no process had loaded any of the package's ``modules``. Raises BadInputError if one had
    loaded another version, or one from elsewhere.
    """
    own = package.replace("-", "_")  # torch_xla's wheel has torchax, too, of another version
    with_version = {own} if own in modules else modules
    places: dict[int, str] = {}  # by process
    for each in run.processes:
        for name in sorted(modules.intersection(each["modules"]), key=lambda name: name == own):
            text, place = each["modules"][name]
            places[each["pid"]] = place
            is_elsewhere = within is not None and not Path(place).is_relative_to(within)
            if (name in with_version and _differs(text, version)) or is_elsewhere:
                raise BadInputError(
                    f"the tests had loaded {name} {text} from {place}, not {version}"
                    + (f" from {within}" if within else "")
                    + ": PYTHONPATH, a setting of pytest, conftest.py or a test puts it first"
                )
    if not places:
        return None
    of = sum(each["ran"] or each["pid"] in places for each in run.processes)
    return Proof(package, version, next(iter(places.values())), len(places), of)


def check_platforms(base: SideRun, candidate: SideRun) -> None:
    """Raise BadInputError if jax computed elsewhere with the candidate, as without its plugin."""
    before, after = base.platforms, candidate.platforms
    if before and after and before != after:
        raise BadInputError(
            f"the tests computed on {', '.join(before)} with what is installed, and on "
            f"{', '.join(after)} with the candidate, so they say nothing about it on "
            f"{', '.join(before)}: did a plugin of jax fail to load?"
        )


def _differs(text: str, version: str) -> bool:
    """Return whether a module's version is another one; many modules do not say theirs."""
    try:
        return Version(text).public != Version(version).public
    except InvalidVersion:
        return False
