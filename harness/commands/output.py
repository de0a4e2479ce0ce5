"""What commands print: results on standard output, progress on standard error.

Every line may have text of unknown origin in it, so every line goes through ``printable``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from harness.printable import printable


def show(text: str) -> None:
    """Print the lines of a result, at once: a command may have more to do."""
    print(_lines(text), flush=True)


def say(text: str) -> None:
    """Print progress or an error, which is no result."""
    print(_lines(text), file=sys.stderr, flush=True)


def annotate(lines: Iterable[str]) -> None:
    """Print lines for GitHub's runner, whose values harness.render.annotation has escaped."""
    for line in lines:
        print(line)


def as_json(data: Any, indent: int | None = None) -> str:
    """The data as JSON, in ASCII, which ``show`` leaves as it is."""
    return json.dumps(data, indent=indent).replace("##[", r"#\u0023[")


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
