"""Layout of a script: imports in groups, no comments for linters and type checkers."""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Mapping

from harness.repro.definitions import from_import
from harness.repro.free_names import Bound
from harness.repro.source import Imported

_NOTES = re.compile(r"#\s*(noqa|type:|mypy:|pragma|ruff:|fmt:)")


def import_block(imports: Mapping[Bound, str]) -> str:
    """Import statements, Python's own first; ``import os`` is not among them."""
    whole: dict[str, str] = {}
    parts: defaultdict[str, set[str]] = defaultdict(set)
    seen: set[tuple[str, str]] = set()
    for (_, imported), name in sorted(imports.items(), key=lambda i: (i[0][1].module, i[1])):
        if imported.root:
            whole[f"import {imported.module}"] = imported.module
        elif (name, imported.path) not in seen:  # import a.b as c and from a import b as c
            seen.add((name, imported.path))
            module, _, own = imported.path.rpartition(".")
            bound = own if name == own else f"{own} as {name}"
            if module:
                parts[module].add(bound)
            else:
                whole[f"import {bound}"] = own
    whole.pop(f"import {_OS.module}", None)
    statements = sorted(whole.items(), key=lambda item: item[1])
    statements += [
        (from_import(module, sorted(names, key=_kind)), module)
        for module, names in sorted(parts.items())
    ]
    groups: tuple[list[str], list[str]] = ([], [])
    for statement, module in statements:
        groups[module.partition(".")[0] not in sys.stdlib_module_names].append(statement)
    return "\n\n".join("\n".join(group) for group in groups if group)


_OS = Imported("os", root=True)


def _kind(name: str) -> tuple[int, str]:
    """Constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def without_notes(text: str) -> str:
    """Return the text without the comments that are for linters and type checkers."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and _NOTES.match(token.string):
            line, column = token.start[0] - 1, token.start[1]
            kept = lines[line][:column].rstrip()
            lines[line] = f"{kept}\n" if kept else ""
    return "".join(lines)
