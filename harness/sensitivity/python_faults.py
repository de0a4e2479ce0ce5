"""Faults in a framework's own Python: what a slip of its maintainers would do.

A function that a case calls is compiled again with one change of one line, and its code takes the
place of the original's in the case's own process. So no file is changed, and one process that has
imported the framework serves all faults. A function within a function is part of the outer one.
"""

from __future__ import annotations
import __future__

import ast
import copy
import difflib
import gc
import importlib
import operator
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from harness.sensitivity.left_out import is_left_out
from harness.sensitivity.python_source import Function, lines, node_of, parts, statements
from harness.sensitivity.unread import unread_statements

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_JUNCTIONS: dict[type[ast.boolop], type[ast.boolop]] = {ast.And: ast.Or, ast.Or: ast.And}

_AROUND = "def outer():\n    class {owner}:\n        pass"

Edit = Callable[[], None]


def _comparison(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield lambda: node.ops.__setitem__(0, _COMPARISONS[type(node.ops[0])]())


def _condition(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.IfExp):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield lambda: setattr(node, "test", negated)


def _arithmetic(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield lambda: setattr(node, "op", _ARITHMETIC[type(node.op)]())


def _junction(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        yield lambda: setattr(node, "op", _JUNCTIONS[type(node.op)]())


def _number(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        if isinstance(node.value, bool):
            return
        more = node.value + 1
        yield lambda: setattr(node, "value", more)


def _flag(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda: setattr(node, "value", not node.value)


def _call_left_out(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield lambda: setattr(node, "value", ast.Constant(None))


def _argument_left_out(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None and not is_left_out(keyword):
                yield partial(operator.delitem, node.keywords, number)


def _arguments_swapped(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second = node.args[:2]
        starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        if not starred and ast.dump(first) != ast.dump(second):
            yield lambda: node.args.__setitem__(slice(0, 2), [second, first])


def _result_left_out(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield lambda: setattr(node, "value", ast.Constant(None))


PYTHON_OPERATORS: dict[str, Callable[[ast.AST], Iterator[Edit]]] = {
    "python-comparison": _comparison,
    "python-condition": _condition,
    "python-arithmetic": _arithmetic,
    "python-and-or": _junction,
    "python-number": _number,
    "python-flag": _flag,
    "python-call-left-out": _call_left_out,
    "python-argument-left-out": _argument_left_out,
    "python-arguments-swapped": _arguments_swapped,
    "python-result-left-out": _result_left_out,
}


def lines_by_place(name: str) -> dict[str, list[range]]:
    """Return, for each operator, the lines of the statement of each place in a function."""
    node = node_of(name)
    edits = _edits(node) if node else {}
    return {kind: [lines(statement) for statement, _ in edits[kind]] for kind in edits}


def places(name: str, executed: frozenset[int]) -> dict[str, list[str]]:
    """Return, for each operator, the line of each place in a function, or "" if never executed.

    Operators without a place in an executed line are left out.
    """
    by_operator = {
        kind: ["" if executed.isdisjoint(own) else f"line {own[0]}" for own in each]
        for kind, each in lines_by_place(name).items()
    }
    return {kind: of_kind for kind, of_kind in by_operator.items() if any(of_kind)}


def plant(name: str, kind: str, place: int) -> bool:
    """Change a function of this process; return whether it could be changed."""
    module, qualified, first = name.split(":")
    node = changed(name, kind, place)
    try:
        importlib.import_module(module)  # a case may import it later
    except ImportError:
        return False
    loaded = _loaded(module, qualified, int(first))
    if node is None or not loaded:
        return False
    own = _compiled(loaded[0], node, qualified.rpartition(".")[0].rpartition(".")[2])
    if own is None or own.co_freevars != loaded[0].__code__.co_freevars:
        return False
    for function in loaded:
        function.__code__ = own
    return True


def changed(name: str, kind: str, place: int) -> Function | None:
    """Return a function with the fault in it, or None if there is no such function."""
    node = copy.deepcopy(node_of(name))
    if node is not None:
        _edits(node)[kind][place][1]()
        ast.fix_missing_locations(node)
    return node


def difference(name: str, kind: str, place: int) -> list[str]:
    """Return the changed lines of a function, before and after, as in a diff."""
    trees = node_of(name), changed(name, kind, place)
    was, now = (ast.unparse(tree).splitlines() if tree else [] for tree in trees)
    changes = list(difflib.unified_diff(was, now, n=0, lineterm=""))[2:]
    return [line for line in changes if not line.startswith("@@")]


def _edits(node: ast.AST) -> dict[str, list[tuple[ast.stmt, Edit]]]:
    """Return the edits of a function's body by operator, each with its statement.

    The function's own decorators and defaults were evaluated when its module was imported.
    """
    edits: dict[str, list[tuple[ast.stmt, Edit]]] = {kind: [] for kind in PYTHON_OPERATORS}
    unread = unread_statements(node)
    for statement in statements(node):
        for part in () if statement in unread else parts(statement):
            for kind, find in PYTHON_OPERATORS.items():
                edits[kind] += [(statement, edit) for edit in find(part)]
    return edits


def _loaded(module: str, qualified: str, first: int) -> list[FunctionType]:
    """Return the function objects of this process that a definition has made.

    Most are what their name says, or what a decorator has wrapped. If the name leads to another
    function, or to none, all functions of this process are searched.
    """
    path = getattr(sys.modules.get(module), "__file__", None)

    def matches(value: object) -> bool:
        if type(value) is not FunctionType:
            return False
        code = value.__code__
        place = (code.co_filename, code.co_firstlineno, code.co_name)
        return place == (path, first, qualified.rpartition(".")[2])

    value: Any = sys.modules.get(module)
    for part in qualified.split("."):
        value = getattr(value, "__dict__", {}).get(part)
        value = getattr(value, "__func__", getattr(value, "fget", None) or value)
    while not matches(value) and hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    if matches(value):
        return [value]
    gc.unfreeze()  # or else what was imported before the fork is not listed
    return [value for value in gc.get_objects() if matches(value)]


def _compiled(function: FunctionType, node: Function, owner: str) -> CodeType | None:
    """Compile a function's new definition in the scope of the old one; return its code."""
    node.decorator_list = []
    (outer,) = ast.parse(_AROUND.format(owner=owner or "Module")).body
    assert isinstance(outer, ast.FunctionDef)
    outer.args.args = [ast.arg(name) for name in function.__code__.co_freevars]
    (inner,) = outer.body
    assert isinstance(inner, ast.ClassDef)
    # Or else a function that names itself or its class would take that from this scope.
    itself = ast.Global([owner or node.name])
    if owner:
        inner.body = [node]
    outer.body = [itself, inner if owner else node]
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    module = ast.fix_missing_locations(ast.Module([outer], []))
    whole = compile(module, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    return next((code for code in _codes(whole) if code.co_name == node.name), None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
