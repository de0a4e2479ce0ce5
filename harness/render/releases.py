"""What the releases answer about an issue, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.render.text import title, wrapped
from harness.verdicts.releases import History


def lines(found: Sequence[History]) -> Iterator[str]:
    """Each history for the terminal, in lines of at most 80 columns."""
    for history in found:
        yield title(history.title)
        width = max((len(stack.name) for stack in history.stacks), default=0)
        for stack in history.stacks:
            verdict = stack.answer.verdict
            yield f"{stack.name:<{width}}  {verdict:<10} {stack.answer.count:>8}"
        yield from wrapped(_conclusion(history))


def _conclusion(history: History) -> str:
    if not history.known:
        return "Never measured: on no stack did a case of it run to an answer."
    bad = history.names("wrong")
    if not bad:
        return f"Never wrong on the stacks that measured it: {len(history.known)}."
    after = history.first_good_after
    said = f"First bad {bad[0]}, last bad {bad[-1]}, "
    said += f"first good after it {after}." if after else "no good stack after it."
    if history.known[0].answer.wrong:
        said += f" {bad[0]} is the first stack that measured it: it may be older."
    if history.changes > (1 if history.known[0].answer.wrong else 2):
        said += f" Not monotonic: the answer changes {history.changes} times."
    return said
