"""Decide which issues on regressions to open, update, close, reopen or leave alone.

An issue belongs to a cause. It is found again by the marker in its body, wherever else somebody
edits it: by the cause's key, or by a case that it has in common with the regression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.issues.text import Mark, body, kept, mark_of, marked, title, unmarked
from harness.render.github_markup import code, plain
from harness.verdicts.regressions import Regression, State, digest


@dataclass(frozen=True)
class Issue:
    """An issue with our label, as GitHub has it."""

    number: int
    open: bool
    title: str
    body: str


@dataclass(frozen=True)
class Action:
    """Action on an issue; ``number`` 0 opens one. An empty text changes or adds nothing."""

    kind: str  # open, update, close, reopen
    number: int
    title: str = ""
    body: str = ""
    comment: str = ""


@dataclass(frozen=True)
class _Known:
    """Issue of ours, with the data from its marker."""

    issue: Issue
    mark: Mark

    @property
    def by_hand(self) -> bool:
        """Return whether a person closed the issue; it is then not reopened for the same cause."""
        return not self.issue.open and self.mark.left == "open"


def decide(state: State, issues: Iterable[Issue], site: str = "") -> list[Action]:
    """Return at most one action for an issue, and none where nothing changed."""
    known = [_Known(issue, mark) for issue in issues if (mark := mark_of(issue.body)) is not None]
    known.sort(key=lambda each: (not each.issue.open, -each.issue.number))
    owned: dict[int, list[Regression]] = {}
    actions = []
    for regression in state.regressions:
        owner = _owner(regression, known)
        if owner is not None:
            owned.setdefault(owner.issue.number, []).append(regression)
        elif not regression.flaky:
            actions.append(_opened(regression, state, site))
    for each in known:
        standing = owned.get(each.issue.number, [])
        action = _still(each, standing, state, site) if standing else _gone(each, state)
        if action is not None:
            actions.append(action)
    return actions


def _owner(regression: Regression, known: Sequence[_Known]) -> _Known | None:
    """Return the issue of this cause, or else an open one that has one of its cases.

    A case that was fixed and breaks in another way is a new regression. Cases that are lost again
    are not: a runner that dies now and then is one issue.
    """
    lines, kind = set(regression.lines), regression.verdict
    by_key = [each for each in known if each.mark.key == regression.key]
    by_case = [
        each
        for each in known
        if lines & set(each.mark.lines)
        and (each.issue.open or (not each.by_hand and kind == each.mark.kind == "missing"))
    ]
    return next(iter(by_key + by_case), None)


def _opened(regression: Regression, state: State, site: str) -> Action:
    mark = Mark(regression.key, regression.lines, regression.verdict, "open")
    return Action("open", 0, title(regression), marked(body(regression, state, site), mark))


def _still(known: _Known, standing: Sequence[Regression], state: State, site: str) -> Action | None:
    issue, mark, main = known.issue, known.mark, _main(known, standing)
    lines = tuple(kept(line for each in standing for line in each.lines))
    new = set(lines) - set(mark.lines)
    text = body(main, state, site)
    whole = marked(text, replace(mark, lines=lines, kind=main.verdict, left="open"))
    if not issue.open:
        if all(each.flaky for each in standing) or (known.by_hand and not new):
            return None
        back = f"It is back: {_count(len(lines))}."
        comment = back if mark.left == "fixed" else _changed(known, lines)
        return Action("reopen", issue.number, title(main), whole, comment)
    if digest(text)[:12] == mark.text and lines == mark.lines:
        return None
    return Action("update", issue.number, title(main), whole, _changed(known, lines))


def _main(known: _Known, standing: Sequence[Regression]) -> Regression:
    """Return the regression that the issue was opened for if it still stands, or else another."""
    return next((each for each in standing if each.key == known.mark.key), standing[0])


def _gone(known: _Known, state: State) -> Action | None:
    """Close the issue once every case works again; a case that was not measured keeps it open."""
    runs = [state.working.get(line, "") for line in known.mark.lines]
    if known.mark.left == "fixed" or not runs or not all(runs):
        return None
    text = marked(unmarked(known.issue.body), replace(known.mark, left="fixed"))
    if not known.issue.open:  # a person closed it; from now on its return is news
        return Action("update", known.issue.number, "", text)
    last = max(runs)
    versions = state.versions.get(last, {})
    words = ", ".join(f"{n} {v}" for n, v in versions.items() if v and n not in ("stack", "commit"))
    comment = (
        f"Fixed: {_count(len(runs))} as declared or better in run {code(last)} ({plain(words)})."
    )
    return Action("close", known.issue.number, "", text, comment)


def _changed(known: _Known, lines: Sequence[str]) -> str:
    came = len(set(lines) - set(known.mark.lines))
    went = len(set(known.mark.lines) - set(lines))
    parts = [f"{_count(came)} more"] * bool(came) + [f"{_count(went)} fewer"] * bool(went)
    return f"Now {' and '.join(parts)}." if parts else ""


def _count(number: int) -> str:
    return f"{number} case{'s' * (number != 1)}"
