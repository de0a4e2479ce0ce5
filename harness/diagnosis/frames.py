"""The Python frames in a failure's text, innermost first, as pytest and faulthandler print them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CAUSE = re.compile(r"^The above exception was the direct cause .*$", re.MULTILINE)
_CONTEXT = re.compile(r"^During handling of the above exception, .*$", re.MULTILINE)
# pytest's short style; a plain traceback, also as part of a message; faulthandler's.
_FRAME = re.compile(
    r"^(?P<short>\S+?):\d+: in (?P<short_name>.+)$"
    r'|^(?:E\s)?[ \t]*File "(?P<file>[^"]+)", line \d+,? in (?P<name>.+)$',
    re.MULTILINE,
)
_CALLED_FIRST = re.compile(r"\(most recent call first\):\n(?P<frames>(?:  File .*\n)+)")
_CURRENT = re.compile(r"Current thread [^\n]*" + _CALLED_FIRST.pattern)
_UPSTREAM = re.compile(r"(^|/)(site-packages|lib/python3[.\d]*)/")


@dataclass(frozen=True)
class Frame:
    """A function that was running, in a file as the text names it."""

    path: str
    function: str
    source: str  # the statement it was at, where the text shows it

    @property
    def is_upstream(self) -> bool:
        """Return whether the file is installed or Python's own, not a suite's or the harness's."""
        return _UPSTREAM.search(self.path) is not None

    @property
    def place(self) -> str:
        """Place such as ``torch_xla/torch_xla.py::sync``, the same in every installation."""
        return f"{self.path.rpartition('site-packages/')[2]}::{self.function}"


def frames(text: str) -> list[Frame]:
    """Return the frames, innermost first. Of chained exceptions the cause is first: it raised."""
    dumped = _CURRENT.search(text) or _CALLED_FIRST.search(text)
    if dumped:
        return list(_found(dumped["frames"]))
    if "\n" not in text:
        return []
    last = _CONTEXT.split(text)[-1]
    return [frame for part in _CAUSE.split(last) for frame in reversed(list(_found(part)))]


def _found(text: str) -> Iterator[Frame]:
    matches = list(_FRAME.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    for match, end in zip(matches, ends, strict=False):  # without a frame there is an end too many
        path, function = match["short"] or match["file"], match["short_name"] or match["name"]
        yield Frame(path, function.strip(), _source(text[match.end() : end]))


def _source(text: str) -> str:
    """Return the statement below a frame's line, up to the first line of the exception."""
    lines: list[str] = []
    for line in text.lstrip("\n").splitlines():
        if (line.startswith("E  ") and not line.startswith("E     ")) or not line.strip():
            break
        lines.append(line.removeprefix("E").strip())
    return "\n".join(line for line in lines if line.strip("^~ "))
