"""Python of a package as source: modules, their functions, statements and the lines of these.

Nothing is imported. A function within a function is part of the outer one.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from harness.sensitivity.left_out import body_is_left_out, is_left_out

Function = ast.FunctionDef | ast.AsyncFunctionDef


def folder_of(package: str) -> str:
    """Return the folder of a package's modules, or "" if there is none. Imports nothing.

    A package in the current folder comes first, as for ``python -m pytest``, which runs the cases.
    """
    here = PathFinder.find_spec(package, [str(Path.cwd())])
    spec = here if here and here.origin else importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return f"{Path(places[0]).resolve()}/" if places else ""


@cache
def path_of(module: str) -> Path | None:
    """Return the file of a module, or None if there is none. Imports nothing."""
    top, *rest = module.split(".")
    folder = folder_of(top)
    path = Path(folder, *rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path if folder and path.exists() else None


def functions(module: str) -> dict[str, range]:
    """Return the lines of each function of a module that is in no other, imported or not.

    The names are ``module:qualified name:first line``; that line may be a decorator's.
    """
    path = path_of(module)
    return {
        f"{module}:{qualified}:{first}": range(first, (node.end_lineno or first) + 1)
        for (qualified, first), node in (_tree(str(path)) if path else {}).items()
    }


@cache
def _tree(path: str) -> dict[tuple[str, int], Function]:
    """Return a file's functions by qualified name and first line, without those left out."""
    by_name: dict[tuple[str, int], Function] = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in _children(node):
            if isinstance(child, ast.ClassDef):
                visit(child, (*names, child.name))
            elif isinstance(child, Function):
                by_name[".".join((*names, child.name)), lines(child)[0]] = child
            else:
                visit(child, names)

    visit(ast.parse(Path(path).read_text()), ())
    return by_name


def node_of(name: str) -> Function | None:
    """Return the function of a name in ``functions``, or None if there is none."""
    module, qualified, line = name.split(":")
    path = path_of(module)
    return _tree(str(path)).get((qualified, int(line))) if path else None


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements, handlers and cases directly within a node, without what is left out."""
    for within in ("body", "orelse", "finalbody", "handlers", "cases"):
        if isinstance(node, ast.expr) or (within == "body" and body_is_left_out(node)):
            continue
        for child in getattr(node, within, ()):
            if not is_left_out(child):
                yield child


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements within a node, also within inner functions."""
    for child in _children(node):
        if isinstance(child, ast.stmt):
            yield child
        yield from statements(child)


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, but no statements within it, and no annotations."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params") or (
            isinstance(node, ast.Assert) and field == "msg"
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (
                isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
                or is_left_out(child)
            ):
                yield from parts(child)


def lines(node: ast.stmt) -> range:
    """Return the lines of a statement, from its first decorator to the first statement in it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    within = next(_within(node), None)
    last = node.end_lineno or node.lineno
    return range(first, max(node.lineno + 1, within.lineno if within else last + 1))


def _within(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _within(child)
