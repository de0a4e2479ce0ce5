"""The text of a bundle's definitions: as they stand in their modules, edited and in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from harness.repro import edits
from harness.repro.bundle import Bundle, Unit
from harness.repro.edits import Edit, FunctionNode
from harness.repro.resolve import Ref
from harness.repro.source import Module

_WIDTH = 100


def definitions(bundle: Bundle, last: str) -> str:
    """All statements: modules after those that they import, ``last`` at the end."""
    result, after_block = "", True
    for name in _order(bundle, last):
        units = [unit for unit in bundle.units.values() if unit.module.name == name]
        for unit in sorted(units, key=lambda u: u.statement.lineno):
            block = isinstance(unit.statement, FunctionNode | ast.ClassDef)
            result += ("\n\n\n" if block or after_block else "\n") + _text(bundle, unit)
            after_block = block
    return result.strip() + "\n"


def from_import(module: str, names: Sequence[str], indent: int = 0) -> str:
    """The statement, a name a line where they don't fit on one."""
    line = f"from {module} import {', '.join(names)}"
    if indent + len(line) <= _WIDTH:
        return line
    pad = " " * indent
    inner = [f"{pad}    {name}," for name in names]
    return "\n".join([f"from {module} import (", *inner, f"{pad})"])


def _order(bundle: Bundle, last: str) -> list[str]:
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name not in seen:
            seen.add(name)
            for other in sorted(bundle.depends.get(name, ())):
                visit(other)
            order.append(name)

    for name in (last, *sorted(bundle.depends)):
        visit(name)
    return sorted(order, key=lambda name: name == last)


def _text(bundle: Bundle, unit: Unit) -> str:
    module, statement = unit.module, unit.statement
    if isinstance(statement, ast.ClassDef):
        edits.remove_members(module, unit.plan, statement, unit.removable)
    changes = [*unit.plan.edits, *_uses(bundle, unit), *_own_names(bundle, unit)]
    changes += [Edit(*module.span(node), "pass") for node in unit.inner_imports]
    line = edits.first_line(statement)
    while line > 1 and module.lines[line - 2].startswith("#"):
        line -= 1
    start, stop = module.offset(line, 0), module.offset(edits.last_line(statement) + 1, 0)
    return edits.apply(module.text.encode(), start, stop, changes).rstrip()


def _uses(bundle: Bundle, unit: Unit) -> Iterator[Edit]:
    for use in unit.uses:
        found = bundle.meaning(unit.module, use)
        if found is not None:
            name = bundle.name(found.target, found.spelling)
            if name != ast.unparse(found.node):
                yield Edit(*unit.module.span(found.node), name)


def _own_names(bundle: Bundle, unit: Unit) -> Iterator[Edit]:
    """New names of what the statement itself defines, and only the needed ones of its imports."""
    module = unit.module
    for node in _at_module_level(unit.statement):
        if isinstance(node, FunctionNode | ast.ClassDef):
            name = bundle.name(Ref(module.name, node.name))
            if name not in ("", node.name):
                line = module.lines[node.lineno - 1]
                column = line.index(node.name, node.col_offset + len("def"))
                start = module.offset(node.lineno, len(line[:column].encode()))
                yield Edit(start, start + len(node.name.encode()), name)
        elif isinstance(node, ast.ImportFrom):
            yield Edit(*module.span(node), _needed(bundle, module, node))


def _needed(bundle: Bundle, module: Module, node: ast.ImportFrom) -> str:
    """An import that depends on something, of those names that are used."""
    kept = []
    for alias in node.names:
        name = bundle.name(Ref(module.name, alias.asname or alias.name))
        if name:
            kept.append(alias.name if name == alias.name else f"{alias.name} as {name}")
    return from_import(node.module or "", kept, node.col_offset) if kept else "pass"


def _at_module_level(statement: ast.AST) -> Iterator[ast.AST]:
    yield statement
    if not isinstance(statement, FunctionNode | ast.ClassDef):
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.stmt | ast.ExceptHandler):
                yield from _at_module_level(node)
