"""What a qualification runs besides the suites: reruns of what differs, and swapped stacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.diagnosis.signature import generalised
from harness.errors import BadInputError
from harness.junit.report import Report, Result
from harness.matrix import attribution, run
from harness.matrix.attribution import Component, Swap
from harness.matrix.cell import Cell
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack
from harness.verdicts.findings import Comparison, Finding
from harness.verdicts.words import Verdict

_DIFFERS = (Verdict.REGRESSED, Verdict.FIXED, Verdict.FLAKY)


@dataclass(frozen=True)
class Runner:
    """Runs chosen cases on any stack, into folders below ``out``."""

    environments: Environments
    out: Path
    arguments: tuple[str, ...]
    say: run.Say
    jobs: int = 0
    fresh: bool = False

    def reports(
        self, stacks: Iterable[Stack], cases: Sequence[Result], folder: str
    ) -> dict[str, list[Report]]:
        """Each stack's reports of those cases, on the lanes that they ran on; [] if it has none."""
        lanes = {lane: tuple(r.id for r in cases if r.lane == lane) for lane in _lanes(cases)}
        wanted = list(stacks)
        cells = [
            Cell(stack, lane, self.out / folder / stack.slug, self.arguments, ids)
            for stack in wanted
            for lane, ids in lanes.items()
        ]
        done = run.run(cells, self.environments, jobs=self.jobs, fresh=self.fresh, say=self.say)
        found: dict[str, list[Report]] = {stack.name: [] for stack in wanted}
        for cell in done.finished:
            found[cell.stack.name].append(cell.read())
        return found


def differing_cases(comparison: Comparison) -> list[Result]:
    """One result of each case that works on one side only."""
    return _results(comparison, comparison.of(*_DIFFERS))


def attribute(comparison: Comparison, base: Stack, candidate: Stack, runner: Runner) -> Comparison:
    """The comparison with the component that carries each regression.

    The base takes one component of the candidate at a time; where none breaks a case alone, the
    candidate takes one of the base's.
    """
    regressed = comparison.of(Verdict.REGRESSED)
    components = attribution.differing(base, candidate)
    if not regressed or not components:
        return comparison
    broken = {finding.key: _broken(comparison, finding) for finding in regressed}
    into_base = _swaps(base, candidate, components, broken, runner)
    left = attribution.unsettled(broken, into_base)
    into_candidate = _swaps(candidate, base, components, {key: broken[key] for key in left}, runner)
    named = {
        key: attribution.verdict(into_base.get(key, {}), into_candidate.get(key, {}))
        for key in broken
    }
    return replace(
        comparison,
        findings=tuple(replace(f, component=named.get(f.key)) for f in comparison.findings),
    )


def _swaps(
    stack: Stack,
    other: Stack,
    components: Collection[Component],
    broken: dict[str, Result],
    runner: Runner,
) -> dict[str, dict[str, Swap]]:
    """What each case says of ``stack`` with each of the other's components."""
    if not broken:
        return {}
    stacks = {c.name: attribution.swapped(stack, other, c) for c in components}
    makeable = {}
    for name, swapped in stacks.items():
        try:
            runner.environments.create(swapped, runner.say)
            makeable[name] = swapped
        except BadInputError as error:  # the pins of the two don't go together: no answer
            runner.say(str(error))
    reports = runner.reports(makeable.values(), list(broken.values()), "swaps")
    found: dict[str, dict[str, Swap]] = {}
    for name, swapped in stacks.items():
        results = {
            k: r for report in reports.get(swapped.name, []) for k, r in report.results.items()
        }
        for key, result in broken.items():
            found.setdefault(key, {})[name] = attribution.judge(results.get(key), result, _same)
    return found


def _same(one: str, other: str) -> bool:
    return generalised(one) == generalised(other)


def _broken(comparison: Comparison, finding: Finding) -> Result:
    runs = comparison.candidate.runs[finding.key]
    return next(result for result in runs if result.measured and not result.works)


def _results(comparison: Comparison, findings: Iterable[Finding]) -> list[Result]:
    sides = (comparison.base.runs, comparison.candidate.runs)
    return [next(runs[f.key][0] for runs in sides if f.key in runs) for f in findings]


def _lanes(cases: Sequence[Result]) -> list[str]:
    return sorted({result.lane for result in cases})
