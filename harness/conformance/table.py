"""Answers as text: a table by level, and what is behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from harness.conformance.answer import CheckAnswer, Conformance
from harness.conformance.plugin_check import LEVELS, Conformity
from harness.conformance.plugin_file import JAXLIBS_CLIENT
from harness.printable import escaped
from harness.render.terminal_lines import title, wrapped

_HEADS = "conforms", "fails", "unsupported", "not measurable"
_MOST_SHOWN = 20
_MOST_LINES = 24  # of a program
_WIDTH = 140


def lines(answer: Conformance) -> Iterator[str]:
    """Yield the table, what fails, and what a reader can do next."""
    yield from _head(answer)
    yield ""
    yield f"{'':<20}" + "".join(f"{head:>15}" for head in _HEADS)
    for level in LEVELS:
        own = [each for each in answer.answers if each.level == level.number]
        for stack in dict.fromkeys(each.stack for each in own):
            members = [each for each in own if each.stack == stack]
            counts = Counter(each.result for each in members)
            yield _row(f"L{level.number} {stack or level.about}", counts)
            yield from _areas(members)
    yield from _failures([a for a in answer.answers if a.result is Conformity.FAILS])
    yield from _lacks(answer)
    yield ""
    yield from _conclusion(answer)


def _head(answer: Conformance) -> Iterator[str]:
    plugin = answer.plugin
    if not plugin.get("api") and not plugin.get("client"):
        yield f"{answer.name}: jaxlib's own client"
        return
    api = ".".join(map(str, plugin.get("api", ("?",))))
    name = plugin.get("platform", answer.name)
    devices = plugin.get("devices", 0)
    kind = f" ({plugin['kinds'][0]})" if plugin.get("kinds") else ""
    count = f"{devices} device{'s' * (devices != 1)}"
    yield f"{answer.name}: platform {name}, PJRT {api}, {count}{kind}"
    if plugin.get("extensions"):
        yield from wrapped(f"extensions: {', '.join(plugin['extensions'])}")
    if plugin.get("client"):
        yield from wrapped(f"no client here: {plugin['client']}")


def _row(name: str, counts: Counter[Conformity]) -> str:
    return f"{name:<20}" + "".join(f"{counts[result] or '-':>15}" for result in Conformity)


def _areas(own: Sequence[CheckAnswer]) -> Iterator[str]:
    for area, members in groupby(own, lambda each: each.id.split("/")[1]):
        yield _row(f"   {area.replace('_', ' ')}", Counter(each.result for each in members))


def _failures(failed: Sequence[CheckAnswer]) -> Iterator[str]:
    for each in failed[:_MOST_SHOWN]:
        yield ""
        yield title(f"{each.kind}: {each.id}")
        yield from wrapped(f"{each.title}: {each.detail}")
        yield from wrapped(" -> ".join(each.steps[-5:]), 2)
        yield from _program(each)
    if len(failed) > _MOST_SHOWN:
        yield ""
        yield f"... and {len(failed) - _MOST_SHOWN} more: --json FILE has them all"


def _program(answer: CheckAnswer) -> Iterator[str]:
    """Yield the lines that reproduce a failure, or the first of many."""
    of_program = answer.program.splitlines()
    yield from (f"    {escaped(line[:_WIDTH])}" for line in of_program[:_MOST_LINES])
    if len(of_program) > _MOST_LINES:
        yield f"    ... {len(of_program) - _MOST_LINES} more lines: --json FILE"


def _lacks(answer: Conformance) -> Iterator[str]:
    for result in (Conformity.UNSUPPORTED, Conformity.NOT_MEASURABLE):
        reasons = Counter(a.detail.split("\n")[0] for a in answer.answers if a.result is result)
        if not reasons:
            continue
        yield ""
        yield f"{result}: {_number(reasons.total())}"
        for reason, count in reasons.most_common(8):
            yield from wrapped(reason, 6, f"{count:>4}  ")
        if len(reasons) > 8:
            yield f"      and {len(reasons) - 8} other reasons"


def _number(checks: int) -> str:
    return f"{checks} check{'s' * (checks != 1)}"


def _conclusion(answer: Conformance) -> Iterator[str]:
    counts = answer.counts()
    for level, kinds in enumerate(("functions of the C API", "operators and types of StableHLO")):
        if names := answer.uncovered.get(level):
            yield f"{len(names)} {kinds} are not covered yet (--json)."
    if not counts[Conformity.CONFORMS] + counts[Conformity.FAILS]:
        yield f"{answer.name}: nothing could be measured here."
    elif answer.conforms:
        yield f"{answer.name} conforms: {_number(counts[Conformity.CONFORMS])}, none fails."
    else:
        failed = counts[Conformity.FAILS]
        yield f"{answer.name}: of {_number(counts.total())} {failed} fail. One again:"
        first = next(a for a in answer.answers if a.result is Conformity.FAILS)
        stack = f" --stack {first.stack}" if first.stack else ""
        subject = answer.name if answer.name == JAXLIBS_CLIENT else f"{answer.name}=PATH"
        yield f"  xla-harness conformance {subject} --check '{first.check}'{stack}"
