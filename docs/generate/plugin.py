"""What the pytest plugin adds: options, settings, markers and fixtures."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

from _pytest.config.argparsing import Parser

from harness import plugin as entry
from harness.session import fixtures, options
from harness.session.markers import MARKERS


def page() -> str:
    """Tables of them."""
    parser = Parser(_ispytest=True)
    options.add_options(parser)
    return "\n".join(
        [
            "# pytest",
            "",
            "What the plugin adds to pytest. [Writing a case](../cases.md) explains how to use it.",
            "",
            *_options(parser),
            *_table("Settings", "in `pyproject.toml` or `pytest.ini`", _settings(parser)),
            *_table("Markers", "marker", (line.split(": ", 1) for line in MARKERS)),
            *_table("Fixtures", "fixture", _fixtures()),
        ]
    )


def _options(parser: Parser) -> Iterator[str]:
    yield "## Options\n"
    for group in parser._groups:
        if rows := [_option(option.attrs(), option.names()) for option in group.options]:
            yield f"### {group.name.removeprefix('xla-harness: ').capitalize()}\n"
            yield from _rows("option", rows)


def _option(attributes: typing.Mapping[str, typing.Any], names: list[str]) -> tuple[str, str]:
    value = f" {attributes['metavar']}" if attributes.get("metavar") else ""
    return f"{', '.join(names)}{value}", attributes["help"]


def _settings(parser: Parser) -> Iterator[tuple[str, str]]:
    for name, (text, *_) in parser._inidict.items():
        if name.startswith("xla_"):
            yield name, text or ""


def _fixtures() -> Iterator[tuple[str, str]]:
    for name in entry.__all__:
        function = inspect.unwrap(getattr(fixtures, name)._get_wrapped_function())
        kind = function.__annotations__["return"]
        gives = "" if kind == "None" else f" (`{kind}`)"
        yield name, f"{inspect.getdoc(function)}{gives}"


def _table(title: str, head: str, rows: typing.Iterable[typing.Sequence[str]]) -> Iterator[str]:
    yield f"## {title}\n"
    yield from _rows(head, rows)


def _rows(head: str, rows: typing.Iterable[typing.Sequence[str]]) -> Iterator[str]:
    yield f"| {head} | meaning |"
    yield "| --- | --- |"
    for name, text in rows:
        yield f"| `{name}` | {text[:1].upper()}{text[1:]} |".replace("`|`", "`\\|`")
    yield ""
