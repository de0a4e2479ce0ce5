"""The commands and their options, from their argparse parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from harness import cli

_HEAD = """\
# Commands

`xla-harness COMMAND --help` says the same. All commands share their [exit codes](../exit-codes.md).
"""


def page() -> str:
    """Return a section for each command, and for each action of one."""
    return "\n".join([_HEAD, *_sections(cli._parser(), "xla-harness")])


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Its commands by name; none for one that has no commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _sections(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    helps = {
        choice.dest: choice.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    for command, child in subcommands(parser).items():
        full = f"{name} {command}"
        yield f"## {full}\n\n{_sentence(helps.get(command, ''))}\n"
        usage = child.format_usage().removeprefix("usage: ")
        yield f"```text\n{usage}```\n"
        if rows := list(_rows(child)):
            yield "\n".join(["| argument | meaning |", "| --- | --- |", *rows, ""])
        if child.epilog:
            yield f"{child.epilog}\n"
        yield from _sections(child, full)


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)):
            continue
        shown = formatter._format_action_invocation(action)
        needed = " Needed." if action.option_strings and action.required else ""
        text = formatter._expand_help(action) if action.help else ""
        yield f"| `{_cell(shown)}` | {_cell(_sentence(text))}{needed} |"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
