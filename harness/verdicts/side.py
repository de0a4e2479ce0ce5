"""All that was run on one stack: its lanes, its shards, its reruns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import BadInputError
from harness.junit.report import Report, Result


@dataclass(frozen=True)
class Side:
    """One stack's runs, by the case's key."""

    name: str  # the stack's, else its torch_xla version
    versions: Mapping[str, str]
    runs: Mapping[str, tuple[Result, ...]]  # a case's first run, then its reruns
    left_out: tuple[str, ...]  # the causes for which all first runs left cases out
    uncollected: Mapping[str, str]  # file to the first line of why

    @property
    def measured(self) -> int:
        """How many cases ran to an answer at least once."""
        return sum(any(run.measured for run in runs) for runs in self.runs.values())

    def why_missing(self, case: Result) -> str:
        """Why there is no run of a case that the other stack has."""
        file = case.id.partition("::")[0]
        if file in self.uncollected:
            return self.uncollected[file]
        for cause in self.left_out:
            if cause.startswith((f"lane {case.lane}:", f"topology {case.topology}:")):
                return f"left out: {cause}"
        return "not collected: the case is in no report of this stack"


def side(reports: Sequence[Report], reruns: Sequence[Report] = ()) -> Side:
    """The reports of one stack as one. Raises BadInputError when they are of several."""
    every = [*reports, *reruns]
    for other in every[1:]:
        for name, version in every[0].versions.items():
            if other.versions.get(name, version) != version:
                raise BadInputError(
                    f"{other.path}: expected {name} {version}, as in {every[0].path}, "
                    f"found {other.versions[name]}: reports of two stacks can't be one side"
                )
    runs: dict[str, list[Result]] = defaultdict(list)
    for report in every:
        for key, result in report.results.items():
            runs[key].append(result)
    left_out = [set(report.left_out) for report in reports]
    versions = every[0].versions if every else {}
    return Side(
        name=next((r.stack for r in every if r.stack), versions.get("torch_xla", "no report")),
        versions=versions,
        runs={key: tuple(results) for key, results in runs.items()},
        left_out=tuple(sorted(set.intersection(*left_out))) if left_out else (),
        uncollected={f: why for r in every for f, why in r.uncollected.items()},
    )
