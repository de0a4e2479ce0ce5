#!/usr/bin/env python3
"""Find variables and parameters that are named for an act, as `found`, and not for what they hold.

.ci/names.py [PATH...]   prints file and line of each; without paths, those of the whole project
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

BANNED = {"asked", "found", "one", "said", "those", "told", "what"}
FOLDERS = (".ci", "benchmarks", "docs", "harness", "suites", "tests")
KEYS = {  # fields that are keys of JSON which `qualify --json` writes
    ("harness/verdicts/costs.py", "what"),
    ("harness/verdicts/differences.py", "what"),
}


def main(arguments: Sequence[str]) -> int:
    """Print the bindings of banned names, and return 1 if there are any."""
    faults = [
        f"{file}:{line}: {name}: expected a noun that says what the variable holds"
        for folder in arguments or FOLDERS
        for file in sorted(Path(folder).rglob("*.py") if Path(folder).is_dir() else [Path(folder)])
        for line, name in bindings(ast.parse(file.read_bytes()))
        if (str(file), name) not in KEYS
    ]
    print("\n".join(faults), end="\n" if faults else "")
    return int(bool(faults))


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each binding of a banned name."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                pass
            case _:
                continue
        if name in BANNED:
            yield node.lineno, name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
