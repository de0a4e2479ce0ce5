"""The run with which a failure or another state of a case began, and what changed with that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.dashboard.rows import ShownRun, StackLine, Start
from harness.dashboard.site_facts import Facts
from harness.dashboard.units import day, run_time
from harness.render.page_names import run_page


@dataclass(frozen=True)
class Began:
    """The run with which something began on a stack.

    ``before`` is the run that it is compared with: the last one that measured the case, or, for
    the first run of a stack, the last one of the stack before it. It is None if neither is known.
    """

    run: str
    time: datetime | None  # None for a run whose name does not say it
    stack: str
    before: ShownRun | None
    changed: Sequence[str]  # such as ``jax 0.7.1 -> 0.8.0``
    unchanged: str  # if nothing changed: what is known to be the same, in words
    is_shown: bool  # whether the run is among the nights that the site shows

    @property
    def day(self) -> str:
        """Date of the run; "" for one whose name does not say it."""
        return day(self.time)

    @property
    def page(self) -> str:
        """Address of the run from the site's root; "" for one that has no page."""
        return run_page(self.run) if self.is_shown else ""

    @property
    def words(self) -> str:
        """Say what is known of that run; what changed with it follows in ``steps``."""
        if not self.is_shown:
            return ", before the nights shown here"
        if not self.before:
            return ", when it was first measured in these nights"
        if self.is_first:
            change = f"changed from stack {self.before.stack}:" if self.changed else self.unchanged
            return f", the first run of its stack; {change}"
        return f"; {'changed:' if self.changed else self.unchanged}"

    @property
    def steps(self) -> list[str]:
        """Return what changed, with a comma behind each but the last."""
        return [*(f"{step}," for step in self.changed[:-1]), *self.changed[-1:]]

    @property
    def is_first(self) -> bool:
        """Return whether the run is its stack's first, compared with a run of another stack."""
        return self.before is not None and self.before.stack != self.stack


def began(facts: Facts, start: Start, before: Mapping[Start, str]) -> Began:
    """Return what changed with the run of ``start``; ``before`` names the run before it."""
    line = StackLine.of(start)
    after = facts.run.get(start.run)
    earlier = facts.run.get(before.get(start, ""))
    if after and not earlier and facts.lines.get(line, [None])[0] == after:
        earlier = _stack_before(facts, line)
    return Began(
        run=start.run,
        time=after.time if after else run_time(start.run),
        stack=start.stack,
        before=earlier if after else None,
        changed=steps(earlier, after) if earlier and after else (),
        unchanged=unchanged(earlier, after) if earlier and after else "",
        is_shown=after is not None,
    )


def steps(before: ShownRun, after: ShownRun) -> list[str]:
    """Describe what changed between two runs: versions of components, commit and machine."""
    names = dict.fromkeys([*before.versions, *after.versions])
    was_is = [(name, before.versions.get(name), after.versions.get(name)) for name in names]
    was_is.append(("commit", before.revision, after.revision))
    was_is.append(("machine", before.machine, after.machine))
    return [
        f"{name} {was or 'unknown'} -> {is_ or 'unknown'}"
        for name, was, is_ in was_is
        if was != is_
    ]


def unchanged(before: ShownRun, after: ShownRun) -> str:
    """Say of two runs without a difference what is the same, and what nobody recorded."""
    recorded = {
        "version": before.versions and after.versions,
        "commit": before.revision and after.revision,
        "machine": before.machine and after.machine,
    }
    same = [name for name, is_recorded in recorded.items() if is_recorded]
    unknown = [name for name, is_recorded in recorded.items() if not is_recorded]
    parts = [f"no {_either(same)} changed"] if same else []
    parts += [f"no {_either(unknown)} was recorded"] if unknown else []
    return "; ".join(parts)


def _either(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _stack_before(facts: Facts, line: StackLine) -> ShownRun | None:
    """Return the last run of the stack before this one, on the same lane and topology."""
    older = facts.stacks[: facts.stacks.index(line.stack)]
    for stack in reversed(older):
        runs = facts.lines.get(line._replace(stack=stack))
        if runs:
            return runs[-1]
    return None
