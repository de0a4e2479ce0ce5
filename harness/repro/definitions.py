"""The text of a bundle's definitions: as they stand in their modules, edited and in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import libcst as cst

from harness.repro.bundle import Bundle, Unit
from harness.repro.edits import WIDTH, Edited
from harness.repro.nodes import walk
from harness.repro.resolve import Ref
from harness.repro.source import Module, Statement


def definitions(bundle: Bundle, last: str) -> str:
    """Return the code of all statements: imported modules first, module ``last`` at the end."""
    result, after_block = "", True
    for name in _order(bundle, last):
        units = [unit for unit in bundle.units.values() if unit.module.name == name]
        for unit in sorted(units, key=lambda u: u.module.tree.body.index(u.statement)):
            block = isinstance(unit.statement, cst.FunctionDef | cst.ClassDef)
            result += ("\n\n\n" if block or after_block else "\n") + _text(bundle, unit)
            after_block = block
    return result.strip() + "\n"


def from_import(module: str, names: Sequence[str], indent: int = 0) -> str:
    """Return the import statement, with one name a line if they don't fit on one."""
    line = f"from {module} import {', '.join(names)}"
    if indent + len(line) <= WIDTH:
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
    module, statement, plan = unit.module, unit.statement, unit.plan
    bundle.rename(module, plan, unit.uses)
    for member in unit.removable.values():
        plan.remove(member)
    for inner in unit.inner_imports:
        plan.replace(inner, cst.Pass())
    for node in walk(statement) if isinstance(statement, cst.Try | cst.If) else ():
        if isinstance(node, cst.ImportFrom) and node not in unit.inner_imports:
            plan.replace(node, _needed(bundle, module, node))
    comments = list(takewhile(lambda line: line.comment, reversed(statement.leading_lines)))
    plan.change(statement, leading_lines=comments[::-1])
    edited = statement.visit(Edited(plan))
    assert isinstance(edited, Statement)
    return module.code(edited).rstrip()


def _needed(bundle: Bundle, module: Module, node: cst.ImportFrom) -> cst.BaseSmallStatement:
    """Return the import with only the names that are used. It stands under a condition."""
    kept = []
    bound = module.bound_by(node)
    for own_name, imported in bound.items():
        name = bundle.name(Ref(module.name, own_name))
        if name:
            own = imported.attribute or ""
            kept.append(own if name == own else f"{own} as {name}")
    if not kept:
        return cst.Pass()
    line = cst.parse_statement(from_import(next(iter(bound.values())).module, kept))
    return cst.ensure_type(line, cst.SimpleStatementLine).body[0]
