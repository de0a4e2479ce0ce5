"""The text of an issue on a regression. Text from reports is untrusted: it is shown literally."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from harness.diagnosis.signature import first_line
from harness.history.names import started
from harness.model.issues import page
from harness.model.scriptable import becomes_script
from harness.render.github_markup import code, plain, table
from harness.render.page_names import case_page, visible
from harness.verdicts.finding import Finding
from harness.verdicts.nightly import changed_components
from harness.verdicts.regressions import Regression, State, digest
from harness.verdicts.words import Verdict

MOST = 65_536  # characters of a body, by GitHub
_BISECTED = ("torch_xla", "jax")  # components whose wheels `bisect` steps over
_MOST_TITLE = 200
_MOST_LINES = 1_500
_MOST_ID = 300
_MOST_MESSAGE = 2_000
_MARKER = re.compile(r"<!-- xla-harness regression (\{[^<>]*\}) -->\s*\Z")
_AT = re.compile("[@\uff20\ufe6b]")  # a title is plain text, in which nothing else stops a mention
_RUN_OF_TICKS = re.compile(r"`{3,}")


def title(regression: Regression) -> str:
    """Stack, case and what happened to it, on one line."""
    first, more = regression.first, len(regression.members) - 1
    verb = "fails" if first.verdict == Verdict.REGRESSED else "no longer runs"
    others = f" (and {more} more)" if more else ""
    tail = f" {verb}{others}"
    name = visible(_AT.sub("(at)", f"{first.stack}: {first.case}"))
    name = " ".join(name.split())
    room = _MOST_TITLE - len(tail)
    return (name if len(name) <= room else f"{name[: room - 1]}…") + tail


def body(regression: Regression, state: State, site: str) -> str:
    """Return all that is needed to investigate; the text changes only if the facts do."""
    for shown in (50, 10, 1):
        text = "\n".join(_parts(regression, state, site, shown))
        if len(text) < MOST - 20_000:
            break
    return text


@dataclass(frozen=True)
class Mark:
    """The content of the hidden marker: digests and fixed words, no text of a report."""

    key: str  # of the cause
    lines: tuple[str, ...]
    kind: str  # regressed or missing
    left: str  # as which we left the issue: open or fixed
    text: str = ""  # a digest of the body that we wrote


def marked(text: str, mark: Mark) -> str:
    """Return the text with the hidden marker by which the issue is found again."""
    facts = asdict(replace(mark, lines=tuple(kept(mark.lines)), text=digest(text)[:12]))
    return f"{text}\n\n<!-- xla-harness regression {json.dumps(facts)} -->\n"


def kept(lines: Iterable[str]) -> list[str]:
    """Return the lines that a marker has room for, always the same ones."""
    return sorted(set(lines))[:_MOST_LINES]


def mark_of(text: str) -> Mark | None:
    """Return what the marker at the end of a body says; None without one."""
    match = _MARKER.search(text.replace("\r\n", "\n"))
    try:
        mark = Mark(**json.loads(match[1])) if match else None
    except (ValueError, TypeError, RecursionError):
        return None
    # Anybody can edit a body: what we would not have written is no marker of ours.
    if mark is None or not isinstance(mark.lines, list):
        return None
    texts = (mark.key, mark.kind, mark.left, mark.text, *mark.lines)
    if not all(isinstance(text, str) for text in texts):
        return None
    return replace(mark, lines=tuple(mark.lines))


def unmarked(text: str) -> str:
    """Return the body without its marker."""
    return _MARKER.sub("", text.replace("\r\n", "\n")).rstrip("\n")


def _parts(regression: Regression, state: State, site: str, shown: int) -> Iterator[str]:
    first = regression.first
    yield _sentence(regression)
    yield ""
    yield from _components(first, state)
    yield from _where(first)
    if first.message:
        yield from ("", *_fenced(first.message[:_MOST_MESSAGE], ""))
    yield from ("", "Cases:", "")
    for member in regression.members[:shown]:
        where = plain(", ".join(part for part in (member.lane, member.topology) if part))
        yield f"- {_linked(member, site)} {where}"
    if len(regression.members) > shown:
        yield f"- and {len(regression.members) - shown} more"
    yield from ("", "On your machine:", "", *_fenced("\n".join(_commands(first, state)), "sh"))


def _sentence(regression: Regression) -> str:
    first, more = regression.first, len(regression.members) - 1
    who = f"{code(_cut(first.case))}{f' and {more} more' if more else ''}"
    verb = "fails" if first.verdict == Verdict.REGRESSED else "does not run any more"
    plural = verb if not more else verb.replace("fails", "fail").replace("does", "do")
    return (
        f"{who} worked on stack {code(first.stack)} until {_day(first.before)} and {plural} "
        f"since {_day(first.since)}."
    )


def _components(first: Finding, state: State) -> Iterator[str]:
    was, is_ = state.versions.get(first.before, {}), state.versions.get(first.since, {})
    changed = changed_components(was, is_)
    unknown = not any(is_.get(name) for name in is_ if name not in ("stack", "commit"))
    if changed:
        yield f"Changed with it: **{plain(', '.join(changed))}**."
    elif unknown:
        yield "Nothing ran that night which could say its versions."
    else:
        yield "No component's version changed with it: look at the commits of this repository."
    yield ""
    names = [name for name in dict.fromkeys((*was, *is_)) if name != "stack"]
    rows = [
        (plain(name), plain(was.get(name, "")), plain(is_.get(name, "")))
        for name in names
        if was.get(name) or is_.get(name)
    ]
    head = ("", f"last good: {code(first.before)}", f"first bad: {code(first.since)}")
    yield from table(head, rows)


def _where(first: Finding) -> Iterator[str]:
    phrases = [first.outcome or "not collected"]
    if first.layer:
        phrases.append(f"at layer {code(first.layer)}")
    yield f"{plain(phrases[0])}{''.join(f' {text}' for text in phrases[1:])}."
    if first.issues:
        links = [f"[{plain(i)}]({page(i)})" if page(i) else plain(i) for i in first.issues[:10]]
        yield f"Upstream: {', '.join(links)}."


def _linked(member: Finding, site: str) -> str:
    shown = code(_cut(member.case))
    return f"[{shown}]({site}{case_page(member.case)})" if site else shown


def _commands(first: Finding, state: State) -> Iterator[str]:
    case = shlex.quote(_cut(" ".join(visible(first.case).split())))
    stack = visible(first.stack)
    base = stack.removesuffix("+wheels")
    with_wheels = "" if base == stack else " --wheels WHEELS"
    lane = f" --lanes {shlex.quote(first.lane)}" if first.lane else ""
    yield f"uv run xla-harness matrix --stacks {shlex.quote(base)}{with_wheels}{lane} -- {case}"
    if becomes_script(first.case):
        yield f"uv run xla-harness repro {case}"
    was, is_ = state.versions.get(first.before, {}), state.versions.get(first.since, {})
    for name in _BISECTED:
        good, bad = was.get(name, ""), is_.get(name, "")
        if good and bad and good != bad:
            ends = f"--good {shlex.quote(good)} --bad {shlex.quote(bad)}"
            own = f"--wheels WHEELS --base {shlex.quote(base)} --component {name}"
            yield f"uv run xla-harness bisect {case} {own} {ends}"
            return


def _fenced(text: str, language: str) -> Iterator[str]:
    """Yield the lines of a block that its text can't end."""
    ticks = "`" * (max([2, *map(len, _RUN_OF_TICKS.findall(text))]) + 1)
    yield f"{ticks}{language or 'text'}"
    yield from (visible(line) for line in text.splitlines())
    yield ticks


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= _MOST_ID else f"{text[: _MOST_ID - 1]}…"


def _day(run: str) -> str:
    try:
        day = f"{started(run):%Y-%m-%d}"
    except ValueError:
        return code(run)
    return f"{day} ({first_line(code(run))})"
