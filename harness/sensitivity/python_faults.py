"""Faults in a framework's own Python: what a slip of its maintainers would do.

A function that a case calls is compiled again with one change of one line, and its code takes the
place of the original's in the case's own process. So no file is changed, and one process that has
imported the framework serves all faults.
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib.util
import operator
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

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
            if keyword.arg is not None:
                yield partial(operator.delitem, node.keywords, number)


def _arguments_swapped(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second = node.args[:2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield lambda: node.args.__setitem__(slice(0, 2), [second, first])


def _result_left_out(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and node.value is not None:
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


def folder_of(package: str) -> str:
    """Where a package's modules are; "" if it is not installed. Does not import it."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return f"{Path(places[0]).resolve()}/" if places else ""


class Calls:
    """The lines of some folders that this process executes, and those that it forks.

    Each is written to a file when it is first executed: a forked process may end without a word.
    """

    def __init__(self, folders: tuple[str, ...], file: Path) -> None:
        self._folders = folders
        self._lines: dict[CodeType, set[int]] = {}
        self._file = file
        self._out = -1

    def start(self) -> None:
        """Listen in this thread and in those that it starts or forks."""
        self._out = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        threading.settrace(self._enter)
        self._listen()
        # coverage.py begins anew in each forked process, in the place of what listens there.
        os.register_at_fork(after_in_child=self._listen)

    def stop(self) -> None:
        """Listen no more."""
        sys.settrace(None)
        threading.settrace(None)
        os.close(self._out)
        self._out = -1

    def _listen(self) -> None:
        if self._out >= 0:
            sys.settrace(self._enter)

    def _enter(self, frame: Any, event: str, argument: object) -> Any:
        del argument
        if event != "call" or not frame.f_code.co_filename.startswith(self._folders):
            return None
        self._lines.setdefault(frame.f_code, set())
        return self._line

    def _line(self, frame: Any, event: str, argument: object) -> Any:
        del argument
        known = self._lines[frame.f_code]
        if event == "line" and frame.f_lineno not in known:
            known.add(frame.f_lineno)
            if name := _name(frame.f_code):
                os.write(self._out, f"{name} {frame.f_lineno}\n".encode())
        return self._line


def called(file: Path) -> dict[str, list[int]]:
    """The lines that ``Calls`` wrote, by their functions' names; none without the file."""
    found: dict[str, set[int]] = {}
    for text in file.read_text().splitlines() if file.exists() else ():
        name, _, line = text.rpartition(" ")
        found.setdefault(name, set()).add(int(line))
    return {name: sorted(found[name]) for name in sorted(found)}


def places(name: str, lines: Collection[int]) -> dict[str, list[str]]:
    """Of each operator, the line of each place of a function; "" for one that is not executed.

    Operators without a place in the lines that are executed are left out.
    """
    node = _node(name)
    if node is None:
        return {}
    found = {
        kind: [f"line {line}" if line in lines else "" for line, _ in _edits(node, kind)]
        for kind in PYTHON_OPERATORS
    }
    return {kind: told for kind, told in found.items() if any(told)}


def plant(name: str, kind: str, place: int) -> bool:
    """Have a function of this process be a changed one; whether it is there to be changed."""
    module, qualified, _ = name.split(":")
    function = _function(module, qualified)
    node = copy.deepcopy(_node(name))
    if function is None or node is None:
        return False
    _edits(node, kind)[place][1]()
    own = _compiled(function, node, qualified.rpartition(".")[0].rpartition(".")[2])
    if own is None or own.co_freevars != function.__code__.co_freevars:
        return False
    function.__code__ = own
    return True


def difference(name: str, kind: str, place: int) -> list[str]:
    """The changed lines of a function, before and after."""
    node = _node(name)
    if node is None:
        return []
    changed = copy.deepcopy(node)
    _edits(changed, kind)[place][1]()
    was, now = (ast.unparse(ast.fix_missing_locations(one)).splitlines() for one in (node, changed))
    removed = [line for line in was if line not in now]
    added = [line for line in now if line not in was]
    return [f"-{line}" for line in removed] + [f"+{line}" for line in added]


def _name(code: CodeType) -> str:
    """``module:qualified name:line``; "" for what no name leads to, as a function in a function."""
    qualified = getattr(code, "co_qualname", code.co_name)
    if "<" in qualified:
        return ""
    module = _module_of(code.co_filename)
    return f"{module}:{qualified}:{code.co_firstlineno}" if module else ""


@cache
def _module_of(path: str) -> str:
    found = (
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) == path and name != "__main__"
    )
    return next(found, "")


@cache
def _tree(path: str) -> dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file, by their qualified names and first lines, decorators included."""
    found: dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, (*names, child.name))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                found[".".join((*names, child.name)), first] = child
            else:
                visit(child, names)

    visit(ast.parse(Path(path).read_text()), ())
    return found


def _node(name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    module, qualified, line = name.split(":")
    top, *rest = module.split(".")
    folder = Path(folder_of(top), *rest)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return _tree(str(path)).get((qualified, int(line))) if path.exists() else None


def _edits(node: ast.AST, kind: str) -> list[tuple[int, Edit]]:
    """Each with the line of its statement.

    In the function's body: its decorators and defaults were evaluated once, long ago.
    """
    find = PYTHON_OPERATORS[kind]
    return [
        (statement.lineno, edit)
        for statement in _statements(node)
        for one in _of_statement(statement)
        for edit in find(one)
    ]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for within in ("body", "orelse", "finalbody", "handlers", "cases"):
        for one in getattr(node, within, ()) if not isinstance(node, ast.IfExp) else ():
            if isinstance(one, ast.stmt):
                yield one
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(one)


def _of_statement(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and the expressions in it, but no statement."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case | ast.Lambda):
            yield from _of_statement(child)


def _function(module: str, qualified: str) -> FunctionType | None:
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = vars(found).get(part) if found is not None else None
        found = getattr(found, "__func__", getattr(found, "fget", None) or found)
    while wrapped := getattr(found, "__wrapped__", None):
        found = wrapped
    return found if isinstance(found, FunctionType) else None


def _compiled(
    function: FunctionType, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
) -> CodeType | None:
    """The code of a function's new definition, where its names mean what they did."""
    node.decorator_list = []
    (outer,) = ast.parse(_AROUND.format(owner=owner or "Module")).body
    assert isinstance(outer, ast.FunctionDef)
    outer.args.args = [ast.arg(name) for name in function.__code__.co_freevars]
    (inner,) = outer.body
    assert isinstance(inner, ast.ClassDef)
    if owner:
        inner.body = [node]
    else:
        outer.body = [node]
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    module = ast.fix_missing_locations(ast.Module([outer], []))
    whole = compile(module, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    return next((code for code in _codes(whole) if code.co_name == node.name), None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
