"""The component that carries each regression, found on stacks with one component swapped."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from harness.diagnosis.signature import generalised
from harness.junit.result import Result
from harness.matrix import attribution
from harness.matrix.attribution import Component, Swap
from harness.matrix.runner import Runner
from harness.stacks.stack import Stack
from harness.verdicts.comparison import Comparison
from harness.verdicts.finding import Finding
from harness.verdicts.groups import Group, causes, representatives
from harness.verdicts.words import Verdict


def to_attribute(comparison: Comparison, base: Stack, candidate: Stack) -> tuple[Group, ...]:
    """Return the causes to attribute: none if it is the framework that differs."""
    if comparison.move or not attribution.differing(base, candidate):
        return ()
    return causes(comparison.of(Verdict.REGRESSED))


def attribute(comparison: Comparison, base: Stack, candidate: Stack, runner: Runner) -> Comparison:
    """Return the comparison with the component responsible for each regression.

    One case of each cause is run, and its result holds for all. The base takes one component of the
    candidate at a time; where none breaks a case alone, the candidate takes one of the base's.
    """
    components = attribution.differing(base, candidate)
    groups_by_key = {_asked(group): group for group in to_attribute(comparison, base, candidate)}
    broken = {key: _broken(comparison, key) for key in groups_by_key}
    into_base = _swaps(base, candidate, components, broken, runner)
    left = attribution.unsettled(broken, into_base)
    into_candidate = _swaps(candidate, base, components, {key: broken[key] for key in left}, runner)
    named = {
        case.key: (key, attribution.verdict(into_base[key], into_candidate.get(key, {})))
        for key, group in groups_by_key.items()
        for case in group.members
    }
    return replace(comparison, findings=tuple(_named(f, named) for f in comparison.findings))


def _asked(group: Group) -> str:
    """Return the case that stands for the cause, if possible one that was rerun itself."""
    rerun = [case for case in group.members if case.rerun_itself]
    return representatives(rerun or group.members, 1)[0].key


def _broken(comparison: Comparison, key: str) -> Result:
    runs = comparison.candidate.runs[key]
    return next(result for result in runs if result.measured and not result.works)


def _named(case: Finding, named: Mapping[str, tuple[str, str]]) -> Finding:
    if case.key not in named:
        return case
    key, component = named[case.key]
    return replace(case, component=component, attributed_case=key)


def _swaps(
    stack: Stack,
    other: Stack,
    components: Collection[Component],
    broken: Mapping[str, Result],
    runner: Runner,
) -> dict[str, dict[str, Swap]]:
    """Return each case's result on ``stack`` with each of the other's components."""
    if not broken:
        return {}
    stacks = {c.name: attribution.swapped(stack, other, c) for c in components}
    # Where the pins of the two don't go together there is no environment, and so no answer.
    reports = runner.reports(stacks.values(), list(broken.values()), ["swaps"])
    swaps: dict[str, dict[str, Swap]] = {key: {} for key in broken}
    for name, swapped in stacks.items():
        results = {k: r for report in reports[swapped.name] for k, r in report.results.items()}
        for key, result in broken.items():
            swaps[key][name] = attribution.judge(results.get(key), result, _same)
    return swaps


def _same(failure: str, other: str) -> bool:
    return generalised(failure) == generalised(other)
