"""An upstream issue over stacks, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.render.terminal_lines import title, wrapped
from harness.verdicts.since import Timeline


def lines(timelines: Sequence[Timeline]) -> Iterator[str]:
    """Yield the timelines for the terminal, in lines of 80 columns."""
    for timeline in timelines:
        yield title(timeline.title)
        width = max((len(stack.name) for stack in timeline.stacks), default=0)
        for stack in timeline.stacks:
            verdict = stack.answer.verdict
            yield f"{stack.name:<{width}}  {verdict:<10} {stack.answer.count:>8}"
        yield from wrapped(_conclusion(timeline))


def _conclusion(timeline: Timeline) -> str:
    if timeline.declared:
        bad, after = timeline.names("wrong"), timeline.first_good_after
        if not bad:
            return "Expectations declare no failure on these."
        text = f"Expectations declare it first on {bad[0]}, last on {bad[-1]}, and "
        return text + (f"no more on {after}." if after else "on no later one not to be there.")
    if not timeline.known:
        return "Never measured: on no stack did a case of it run to an answer."
    bad = timeline.names("wrong")
    if not bad:
        return f"Never wrong on the stacks that measured it: {len(timeline.known)}."
    after = timeline.first_good_after
    text = f"First bad {bad[0]}, last bad {bad[-1]}, "
    text += f"first good after it {after}." if after else "no good stack after it."
    if timeline.known[0].answer.wrong:
        text += f" {bad[0]} is the first stack that measured it: it may be older."
    if timeline.changes > (1 if timeline.known[0].answer.wrong else 2):
        text += f" Not monotonic: the answer changes {timeline.changes} times."
    return text
