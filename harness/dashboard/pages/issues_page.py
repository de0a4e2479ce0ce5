"""The matrix of upstream issues and stacks: who gets it wrong, since when, until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.dashboard.page_maker import Build, as_json
from harness.dashboard.rows import Latest
from harness.dashboard.site_facts import Facts
from harness.model.issues import ISSUE
from harness.render.page_names import natural
from harness.verdicts.since import StackAnswer, Timeline
from harness.verdicts.upstream import Row


@dataclass(frozen=True)
class IssueRow:
    """A statement about stacks, the issues that it is about, and each stack's answer."""

    history: Timeline
    issues: Sequence[str]

    @property
    def first_bad(self) -> str:
        """The first stack that gets it wrong, or ""."""
        return next(iter(self.history.names("wrong")), "")

    @property
    def older(self) -> bool:
        """Return whether the first stack measured is already wrong: the fault may be older."""
        return bool(self.history.known) and self.history.known[0].answer.wrong > 0

    @property
    def conclusion(self) -> str:
        """State: ``not fixed yet``, ``fixed in 2.7.0``, ``never wrong`` or ``not measured``."""
        if not self.history.known:
            return "not measured"
        if not self.first_bad:
            return "never wrong"
        after = self.history.first_good_after
        return f"fixed in {after}" if after else "not fixed yet"


def publish(build: Build) -> list[IssueRow]:
    """Write the page, and the same as data. Return its rows."""
    issue_rows = lines(build.facts, build.rows)
    build.page("issues.html", "issues.html", lines=issue_rows, stacks=build.facts.stacks)
    data = [
        {
            "title": line.history.title,
            "issues": line.issues,
            "first_bad": line.first_bad or None,
            "first_good": line.history.first_good_after or None,
            "stacks": {
                stack.name: {"verdict": stack.answer.verdict, "passed": stack.answer.count}
                for stack in line.history.stacks
            },
        }
        for line in issue_rows
    ]
    build.site.write("data/issues.json", as_json({"format": 1, "issues": data}))
    return issue_rows


def lines(facts: Facts, rows: Sequence[Row]) -> list[IssueRow]:
    """Return the rows in their order, then a line for each issue that none of them names."""
    by_stack: dict[str, list[Latest]] = {stack: [] for stack in facts.stacks}
    for latest in facts.latest:
        by_stack[latest.stack].append(latest)
    issue_rows = []
    for row in rows:
        answers = [StackAnswer(s, row.answer(row.select(by))) for s, by in by_stack.items()]
        if any(stack.answer.count != "0/0" for stack in answers):
            issue_rows.append(IssueRow(Timeline(row.title, tuple(answers)), row.issues))
    named = {issue for line in issue_rows for issue in line.issues}
    for issue, about in sorted(_watchers(facts).items(), key=lambda each: natural(each[0])):
        if issue in named:
            continue
        any_case = Row(title=issue, issues=(issue,), cases=("*",))
        answers = [
            StackAnswer(s, any_case.answer([case for case in by if case.name in about]))
            for s, by in by_stack.items()
        ]
        size = len(about)
        title = f"{size} case{'s' if size > 1 else ''} about it"
        issue_rows.append(IssueRow(Timeline(title, tuple(answers)), (issue,)))
    return issue_rows


def _watchers(facts: Facts) -> dict[str, set[str]]:
    """Return the cases of each issue: those that are expected to fail for it, or its watchers."""
    declared: dict[str, set[str]] = {}
    watching: dict[str, set[str]] = {}
    for row in facts.latest:
        if row.expectation and ISSUE.fullmatch(row.expectation):
            declared.setdefault(row.expectation, set()).add(row.name)
        for issue in row.upstream or ():
            watching.setdefault(issue, set()).add(row.name)
    return watching | declared
