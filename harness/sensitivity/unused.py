"""Private functions that no case can call, or whose results nobody reads.

The source of their package decides. Decorated functions and methods are not among them: other code
calls them in other ways.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path

from harness.sensitivity.python_source import Function, folder_of, node_of, path_of

_WORD = re.compile(r"[^\W\d]\w*")


class _Use(Enum):
    CALLED_AT_IMPORT = 1
    CALLED_FOR_NOTHING = 2
    OTHER = 3


def is_unused(name: str) -> bool:
    """Return whether nothing uses a function once its package is imported."""
    return _uses(name) <= {_Use.CALLED_AT_IMPORT}


def unread_lines(name: str) -> set[int]:
    """Return the lines that return a constant or a variable to callers none of which reads it."""
    node = node_of(name)
    if node is None or not _uses(name) <= {_Use.CALLED_AT_IMPORT, _Use.CALLED_FOR_NOTHING}:
        return set()
    return {
        each.lineno
        for each in _own_statements(node)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Constant | ast.Name)
    }


@cache
def _uses(name: str) -> set[_Use]:
    """Return how the modules of a package use a function; as ``OTHER`` if it is public."""
    module, qualified, _ = name.split(":")
    path, node = path_of(module), node_of(name)
    if path is None or node is None or node.decorator_list or "." in qualified:
        return {_Use.OTHER}
    if qualified.startswith("__") or not _is_private((*module.split("."), qualified)):
        return {_Use.OTHER}
    folder = folder_of(module.partition(".")[0])
    files = sorted(_files_by_word(folder)[qualified], key=lambda file: file != path)
    uses: set[_Use] = set()
    while files and _Use.OTHER not in uses:
        uses |= _uses_in(files.pop(0), folder).get(qualified, set())
    return uses


@cache
def _uses_in(file: Path, folder: str) -> dict[str, set[_Use]]:
    """Return how a module uses each name. A function that calls itself does not use itself."""
    uses: defaultdict[str, set[_Use]] = defaultdict(set)
    exports = not _is_private(file.relative_to(folder).with_suffix("").parts)
    for name, use in _visit(ast.parse(file.read_text(errors="replace")), "", exports=exports):
        uses[name].add(use)
    return uses


def _visit(node: ast.AST, function: str, *, exports: bool) -> Iterator[tuple[str, _Use]]:
    """Yield each use of a name below a node.

    Args:
        node: a part of a module.
        function: the outermost function that the node is in, "" if none, "." within a class.
        exports: whether an import makes a name public.
    """
    children = ast.iter_child_nodes(node)
    match node:
        case ast.alias(name=name, asname=other):
            if other not in (None, name) or (exports and not name.startswith("_")):
                yield name, _Use.OTHER
        case ast.Expr(value=ast.Call() as call) if function and _called(call) != function:
            yield _called(call), _Use.CALLED_FOR_NOTHING
            children = _given(call)
        case ast.Call() if not function:
            yield _called(node), _Use.CALLED_AT_IMPORT
            children = _given(node)
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            if name != function:
                yield name, _Use.OTHER
    if isinstance(node, Function | ast.ClassDef | ast.Lambda) and not function:
        function = node.name if isinstance(node, Function) else "."
    for child in children:
        yield from _visit(child, function, exports=exports)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _given(call: ast.Call) -> Iterator[ast.AST]:
    """Yield the parts of a call without the name of what it calls."""
    if not isinstance(call.func, ast.Name):
        yield from ast.iter_child_nodes(call.func)
    yield from (*call.args, *call.keywords)


def _own_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a function without those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef | ast.expr):
            if isinstance(child, ast.stmt):
                yield child
            yield from _own_statements(child)


@cache
def _files_by_word(folder: str) -> dict[str, set[Path]]:
    """Return the modules of a package in which each word occurs."""
    files: defaultdict[str, set[Path]] = defaultdict(set)
    for path in Path(folder).rglob("*.py"):
        for word in set(_WORD.findall(path.read_text(errors="replace"))):
            files[word].add(path)
    return files


def _is_private(names: tuple[str, ...]) -> bool:
    return any(name.startswith("_") and not name.startswith("__") for name in names)
