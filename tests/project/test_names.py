"""A module or a class has a name of its own, so that its name alone says which one it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

# Where a file's name says what its folder has of that kind.
OF_A_PLATFORM = ("generations", "machine", "on_import", "variables")
BY_CONVENTION = ("__init__", "__main__", "command", "lane", *OF_A_PLATFORM)
# A report's case is not the model's. Users import one ``ranks``, and errors name the other one.
TWICE = ("case", "ranks")


def modules() -> Iterator[Path]:
    """All but the stand-ins, which a script of ``repro`` has in place of modules of their names."""
    for path in sorted((ROOT / "harness").rglob("*.py")):
        if "standins" not in path.parts:
            yield path


def test_the_name_of_a_module_occurs_once() -> None:
    """A command may have the name of the module that does its work."""
    places = defaultdict[str, list[str]](list)
    for path in modules():
        if path.stem not in (*BY_CONVENTION, *TWICE) and path.parent.name != "commands":
            places[path.stem].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_the_name_of_a_class_occurs_once() -> None:
    places = defaultdict[str, list[str]](list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: lines for name, lines in places.items() if len(lines) > 1}
