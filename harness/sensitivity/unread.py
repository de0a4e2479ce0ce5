"""Statements of a function that only set variables which nothing reads, directly or in the end."""

from __future__ import annotations

import ast

_PURE_CALLS = {"abs", "bool", "float", "int", "len", "max", "min", "round", "str"}
_SEES_ALL_NAMES = {"eval", "exec", "locals", "vars"}
_PURE = (
    *(ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.IfExp, ast.Name, ast.Tuple),
    *(ast.UnaryOp, ast.boolop, ast.cmpop, ast.expr_context, ast.operator, ast.unaryop),
)


def unread_statements(function: ast.AST) -> set[ast.AST]:
    """Return the statements whose only effect is on variables that no other statement reads."""
    nodes = list(ast.walk(function))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    shared = {
        name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
    }
    if names & _SEES_ALL_NAMES:
        return set()
    dead = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    } - shared
    while True:
        unread = {node for node in _outside_classes(function) if _only_sets(node, dead)}
        read = _read(function, unread)
        if not dead & read:
            return {part for node in unread for part in ast.walk(node)}
        dead -= read


def _outside_classes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes below a node; what a class sets are its attributes."""
    below: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef):
            below += [child, *_outside_classes(child)]
    return below


def _only_sets(node: ast.AST, names: set[str]) -> bool:
    """Return whether a statement does nothing but give these variables another value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return all(_is_among(target, names) for target in targets) and _is_pure(value)
        case (
            ast.AugAssign(target=target, value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value)
        ):
            return _is_among(target, names) and _is_pure(value)
        case ast.If(test=test, body=body, orelse=orelse):
            return _is_pure(test) and all(_only_sets(each, names) for each in (*body, *orelse))
    return False


def _is_among(target: ast.expr, names: set[str]) -> bool:
    match target:
        case ast.Name(id=name):
            return name in names
        case ast.Tuple(elts=parts):
            return all(_is_among(part, names) for part in parts)
    return False


def _is_pure(value: ast.expr) -> bool:
    """Return whether an expression only computes a number of others."""
    calls = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    return all(isinstance(node, _PURE) for node in ast.walk(value)) and all(
        isinstance(call, ast.Name) and call.id in _PURE_CALLS for call in calls
    )


def _read(node: ast.AST, unread: set[ast.AST]) -> set[str]:
    """Return the variables that statements other than the ``unread`` ones read or delete."""
    names = set()
    for child in ast.iter_child_nodes(node):
        if child not in unread:
            if isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Store):
                names.add(child.id)
            names |= _read(child, unread)
    return names
