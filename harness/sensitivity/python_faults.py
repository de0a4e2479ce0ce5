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
    """Return the folder of a package's modules, or "" if it is not installed. Imports nothing."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return f"{Path(places[0]).resolve()}/" if places else ""


class Calls:
    """Tracer of the lines of some folders that this process and its forks execute.

    It writes each line to a file at its first execution: a forked process may end at any time.
    """

    def __init__(self, folders: tuple[str, ...], file: Path) -> None:
        self._folders = folders
        self._lines: dict[CodeType, set[int]] = {}
        self._file = file
        self._out = -1

    def start(self) -> None:
        """Start tracing in this thread, and in threads and processes that it starts or forks."""
        self._out = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        threading.settrace(self._enter)
        self._listen()
        # coverage.py starts its own tracer in each forked process, which replaces this one.
        os.register_at_fork(after_in_child=self._listen)

    def stop(self) -> None:
        """Stop tracing."""
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
    """Read the lines that ``Calls`` wrote, by their functions' names; none without the file."""
    lines: dict[str, set[int]] = {}
    for text in file.read_text().splitlines() if file.exists() else ():
        name, _, line = text.rpartition(" ")
        lines.setdefault(name, set()).add(int(line))
    return {name: sorted(lines[name]) for name in sorted(lines)}


def places(name: str, lines: Collection[int]) -> dict[str, list[str]]:
    """Return, for each operator, the line of each place in a function, or "" if never executed.

    Operators without a place in an executed line are left out.
    """
    node = _node(name)
    if node is None:
        return {}
    by_operator = {
        kind: [f"line {line}" if line in lines else "" for line, _ in _edits(node, kind)]
        for kind in PYTHON_OPERATORS
    }
    return {kind: of_kind for kind, of_kind in by_operator.items() if any(of_kind)}


def plant(name: str, kind: str, place: int) -> bool:
    """Change a function of this process; return whether it is loaded and could be changed."""
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
    """Return the changed lines of a function, before and after, as in a diff."""
    node = _node(name)
    if node is None:
        return []
    changed = copy.deepcopy(node)
    _edits(changed, kind)[place][1]()
    was, now = (
        ast.unparse(ast.fix_missing_locations(tree)).splitlines() for tree in (node, changed)
    )
    removed = [line for line in was if line not in now]
    added = [line for line in now if line not in was]
    return [f"-{line}" for line in removed] + [f"+{line}" for line in added]


def _name(code: CodeType) -> str:
    """Return ``module:qualified name:line``, or "" for a function within a function."""
    qualified = getattr(code, "co_qualname", code.co_name)
    if "<" in qualified:
        return ""
    module = _module_of(code.co_filename)
    return f"{module}:{qualified}:{code.co_firstlineno}" if module else ""


@cache
def _module_of(path: str) -> str:
    names = (
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) == path and name != "__main__"
    )
    return next(names, "")


@cache
def _tree(path: str) -> dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return a file's functions by qualified name and first line, which may be a decorator's."""
    functions: dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, (*names, child.name))
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min(
                    [child.lineno, *(decorator.lineno for decorator in child.decorator_list)]
                )
                functions[".".join((*names, child.name)), first] = child
            else:
                visit(child, names)

    visit(ast.parse(Path(path).read_text()), ())
    return functions


def _node(name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    module, qualified, line = name.split(":")
    top, *rest = module.split(".")
    folder = Path(folder_of(top), *rest)
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return _tree(str(path)).get((qualified, int(line))) if path.exists() else None


def _edits(node: ast.AST, kind: str) -> list[tuple[int, Edit]]:
    """Return the edits of a function's body, each with the line of its statement.

    Decorators and defaults are left out: they were evaluated when the module was imported.
    """
    find = PYTHON_OPERATORS[kind]
    return [
        (statement.lineno, edit)
        for statement in _statements(node)
        for part in _of_statement(statement)
        for edit in find(part)
    ]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for within in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, within, ()) if not isinstance(node, ast.IfExp) else ():
            if isinstance(child, ast.stmt):
                yield child
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(child)


def _of_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, but no statements within it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case | ast.Lambda):
            yield from _of_statement(child)


def _function(module: str, qualified: str) -> FunctionType | None:
    value: Any = sys.modules.get(module)
    for part in qualified.split("."):
        value = vars(value).get(part) if value is not None else None
        value = getattr(value, "__func__", getattr(value, "fget", None) or value)
    while wrapped := getattr(value, "__wrapped__", None):
        value = wrapped
    return value if isinstance(value, FunctionType) else None


def _compiled(
    function: FunctionType, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str
) -> CodeType | None:
    """Compile a function's new definition in the scope of the old one; return its code."""
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
