"""Output of commands: results on standard output, progress on standard error.

Every line may have text of unknown origin in it, so every line goes through ``printable``. Colours
are for terminals only, and not with NO_COLOR: pytest's own rules, so that both tools agree.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from harness.files import write
from harness.printable import printable

if TYPE_CHECKING:
    from _pytest._io import TerminalWriter

STDOUT = Path("-")
_HEADING = "---"  # as harness.render.terminal_lines.title begins and ends a line
# By what a heading is about, before its colon; other headings are bold.
_OF_HEADING = {
    **dict.fromkeys(("regressed", "missing", "new failure", "crashed", "hung"), "red"),
    **dict.fromkeys(("still failing", "flaky", "larger", "slower", "changed"), "yellow"),
    "fixed": "green",
}


def show(text: str, *, style: str = "") -> None:
    """Print the lines of a result, in a colour or ``bold``, where that can be seen."""
    print(_lines(text, sys.stdout, style), flush=True)  # a command may have more to do


def say(text: str, *, style: str = "") -> None:
    """Print progress or an error, which is no result."""
    print(_lines(text, sys.stderr, style), file=sys.stderr, flush=True)


def answer(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print ``text`` and write ``data`` as ``--json`` wants it; with a bare ``--json`` only that.

    ``data`` is what ``json`` takes. Raises BadInputError for a file that can't be written.
    """
    if options.json == STDOUT:
        show(as_json(data, indent=1))
        return
    show(text)
    if options.json:
        write({options.json: f"{json.dumps(data, indent=1)}\n"})


def annotate(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print lines for GitHub's runner, whose values harness.render.annotation has escaped."""
    for line in lines:
        print(line, file=stream)


def as_json(data: Any, indent: int | None = None) -> str:
    """Return the data as JSON in ASCII, which ``show`` prints unchanged."""
    return json.dumps(data, indent=indent).replace("##[", r"#\u0023[")


def columns() -> int:
    """Return the width of the terminal, or 80 without one."""
    return shutil.get_terminal_size((80, 24)).columns


def _lines(text: str, stream: TextIO, style: str) -> str:
    from _pytest._io import TerminalWriter

    writer = TerminalWriter(stream)
    return "\n".join(_painted(printable(line), writer, style) for line in text.split("\n"))


def _painted(line: str, writer: TerminalWriter, style: str) -> str:
    if line.startswith(_HEADING) and line.endswith(_HEADING):
        colour = _OF_HEADING.get(line.strip("- ").partition(":")[0])
        return writer.markup(line, bold=True, **({colour: True} if colour else {}))
    return writer.markup(line, **{style: True}) if style and line else line
