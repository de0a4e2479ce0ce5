"""Finding the one case that a user names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import BadInputError
from harness.expectations import Expectation, Expectations, glob_pattern
from harness.lanes import DEFAULT_LANE, LANES
from harness.model.case import Case
from harness.model.case_id import file_of, function_of
from harness.model.topology import Target
from harness.session.listing import collect
from harness.session.markers import case_of, parametrized_target
from harness.session.options import Settings

_SHOWN = 12


@dataclass(frozen=True)
class Found:
    """A case, as collected in this process."""

    item: pytest.Function
    case: Case
    expectation: Expectation | None


def find(text: str) -> Found:
    """Return the case whose id, as pytest prints it, is or matches ``text`` (``*`` and ``?``).

    Raises BadInputError with the nearest ids for an unknown one, for a pattern of several, and for
    a case that no script can stand for.
    """
    paths = _files(text)
    items = {item.nodeid: item for item in collect(paths)}
    pattern = glob_pattern(text)
    ids = [text] if text in items else [id_ for id_ in items if pattern.fullmatch(id_)]
    if not ids:
        raise BadInputError(f"case {text!r}: no such case{_nearest(text, items)}")
    if len(ids) > 1:
        more = [f"... and {len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else []
        listed = "\n  ".join([*ids[:_SHOWN], *more])
        raise BadInputError(f"case {text!r}: expected one case, it matches\n  {listed}")
    return describe(items[ids[0]], items)


def _files(text: str) -> list[str]:
    """Return the files that can contain the case ``text``; its stars match slashes, too."""
    file = file_of(text)
    if Path(file).is_file() and not Path(file).is_absolute():
        return [file]
    known = sorted(_test_files(Path()))
    literal = re.split(r"[*?]", text, maxsplit=1)[0]
    if literal == text:
        matches = []
    elif "::" in text:
        matches = list(filter(glob_pattern(file).fullmatch, known))
    else:  # a star stands for the colons, too
        matches = [path for path in known if path.startswith(literal) or literal.startswith(path)]
    if not matches:
        raise BadInputError(f"case {text!r}: no such file{_nearest(file, known)}")
    return matches


def _test_files(folder: Path) -> Iterator[str]:
    """Yield the test files as pytest finds them; skip hidden folders and virtual environments."""
    for path in folder.iterdir():
        if path.name.startswith(".") or (path / "pyvenv.cfg").exists():
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _test_files(path)
        elif path.match("test_*.py") or path.match("*_test.py"):
            yield str(path)


def describe(item: pytest.Item, items: dict[str, pytest.Item]) -> Found:
    """Return the item as a case; raise BadInputError if it can't be a script."""
    target = parametrized_target(item)
    if not isinstance(item, pytest.Function) or target is None:
        raise BadInputError(
            f"{item.nodeid}: expected a case: a test function with lanes(...); any other test runs "
            "as it is, by pytest --lane NAME --topology T"
        )
    if LANES[target.lane].compiles_only:
        raise BadInputError(_no_script(item, target, items))
    settings = Settings.of(item.config)
    expectations = Expectations.load_optional(settings.expectations)
    case = case_of(item, target, settings.deadline)
    return Found(item, case, expectations.find(item.nodeid))


def _no_script(item: pytest.Item, target: Target, items: dict[str, pytest.Item]) -> str:
    function = function_of(item.nodeid)
    others = [id_ for id_ in items if id_.startswith(f"{function}[{DEFAULT_LANE}-")]
    close = difflib.get_close_matches(item.nodeid, others, n=1, cutoff=0) or others[:1]
    why = f"lane {target.lane} runs none: xla-harness reduce makes a file of what it compiles"
    hint = f"; write a script for {close[0]}" if close else ""
    return f"{item.nodeid}: expected a case that runs a program: {why}{hint}"


def _nearest(text: str, known: object) -> str:
    names = list(known)  # type: ignore[call-overload]
    close = difflib.get_close_matches(text, names, n=3, cutoff=0.6)
    return "; did you mean\n  " + "\n  ".join(close) if close else ""
