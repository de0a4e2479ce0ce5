"""What is taken out of a definition on its way into a script: markers, fixtures, annotations."""

from __future__ import annotations

import ast
import copy
import io
import sys
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pytest

from harness.errors import BadInputError
from harness.repro.source import Module, bound_names

# Decorators that never look at annotations; those of others stay.
_BLIND = {"abstractmethod", "cache", "cached_property", "classmethod", "composite"}
_BLIND |= {"contextmanager", "fixture", "given", "lru_cache", "no_grad", "override", "property"}
_BLIND |= {"setter", "settings", "staticmethod", "wraps"}
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Edit:
    """Bytes of a module's text, and what takes their place."""

    start: int
    stop: int
    text: str = ""


@dataclass
class Plan:
    """What becomes of one statement."""

    edits: list[Edit] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)  # ids of nodes that are not in the script
    is_context: bool = False

    def remove(self, node: ast.AST, start: int, stop: int) -> None:
        """Take the node out, with all between the two places."""
        self.skipped.add(id(node))
        self.edits.append(Edit(start, stop))


def apply(text: bytes, start: int, stop: int, edits: Collection[Edit]) -> str:
    """The bytes from start to stop with the edits made; one inside another is left out."""
    parts, place = [], start
    for edit in sorted(edits, key=lambda e: (e.start, -e.stop)):
        if edit.start < place or edit.start >= stop:
            continue
        parts += [text[place : edit.start].decode(), edit.text]
        place = edit.stop
    return "".join([*parts, text[place:stop].decode()])


def first_line(statement: ast.stmt) -> int:
    """The line that it starts at, decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(statement: ast.stmt) -> int:
    """The line that it ends at."""
    assert statement.end_lineno is not None
    return statement.end_lineno


def plain(module: Module, statement: ast.stmt, *, whole: bool = False) -> Plan:
    """Without markers and annotations; of docstrings the first paragraph, unless ``whole``."""
    plan = Plan()
    in_classes: set[int] = set()
    for node in ast.walk(statement):
        if isinstance(node, FunctionNode | ast.ClassDef):
            _remove_decorators(module, plan, node)
            if not whole:
                _shorten_docstring(module, plan, node)
        if isinstance(node, FunctionNode) and _is_blind(module, node):
            _remove_annotations(module, plan, node)
        if isinstance(node, ast.ClassDef):
            in_classes |= {id(member) for member in node.body}
        if isinstance(node, ast.AnnAssign) and id(node) not in in_classes and node.value:
            (_, start), (_, stop) = module.span(node.target), module.span(node.annotation)
            plan.remove(node.annotation, start, stop)
    return plan


def take_fixtures(module: Module, plan: Plan, function: FunctionNode) -> list[str]:
    """Make a test or a fixture a plain function of those parameters that it makes use of.

    Returns their names. ``request`` gives way to what it is asked for.
    """
    for decorator in function.decorator_list:
        if _is_fixture(decorator):
            plan.is_context = any(isinstance(n, ast.Yield) for n in _own_nodes(function))
    own = function.args
    names = [a.arg for a in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    used = {n.id for n in _own_nodes(function) if isinstance(n, ast.Name)}
    kept = [n for n in names if n in used or n in ("self", "cls")]
    if "request" in kept:
        kept = _without_request(module, plan, function, kept)
    arguments = copy.deepcopy(own)
    for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
        group[:] = [ast.arg(a.arg) for a in group if a.arg in kept]
    if "param" in kept and "param" not in names:
        arguments.args.append(ast.arg("param"))
    start, stop = _parentheses(module, function)
    plan.edits.append(Edit(start + 1, stop - 1, ast.unparse(arguments)))
    return [name for name in kept if name not in ("self", "cls")]


def _without_request(
    module: Module, plan: Plan, function: FunctionNode, kept: list[str]
) -> list[str]:
    known = 0
    kept = [name for name in kept if name != "request"]
    for node in _own_nodes(function):
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text == "request.param":
            assert isinstance(node, ast.Attribute)
            plan.edits.append(Edit(*module.span(node), "param"))
            kept = [*kept, *({"param"} - set(kept))]
            known += 1
    uses = [n for n in _own_nodes(function) if isinstance(n, ast.Name) and n.id == "request"]
    if known < len(uses):
        raise BadInputError(
            f"{module.path}:{uses[0].lineno}: a script has no pytest request: only "
            "request.param can be replaced"
        )
    return kept


def remove_members(module: Module, plan: Plan, node: ast.ClassDef, names: Collection[str]) -> None:
    """Take methods out of a class."""
    for before, member in zip([None, *node.body], node.body, strict=False):
        if isinstance(member, FunctionNode) and member.name in names:
            line = first_line(member)
            while module.lines[line - 2].lstrip().startswith("#"):
                line -= 1
            start = module.offset(line, 0)
            if before is not None:  # the blank lines between go, too
                start = min(start, module.offset(last_line(before) + 1, 0))
            plan.remove(member, start, module.offset(last_line(member) + 1, 0))


def is_mark(module: Module, decorator: ast.expr) -> bool:
    """Whether it is a pytest marker, by its own name or by one that the module gives it."""
    text = ast.unparse(decorator)
    if text.startswith("pytest.mark."):
        return True
    value: object = sys.modules.get(module.name)
    for part in text.split(".") if text.replace(".", "").isidentifier() else [""]:
        value = getattr(value, part, None)
    return isinstance(value, pytest.MarkDecorator)


def _remove_decorators(module: Module, plan: Plan, node: FunctionNode | ast.ClassDef) -> None:
    following = [*(d.lineno for d in node.decorator_list), node.lineno][1:]
    for decorator, line in zip(node.decorator_list, following, strict=True):
        fixture = _is_fixture(decorator)
        if fixture and any(isinstance(n, ast.Yield) for n in _own_nodes(node)):
            plan.skipped.add(id(decorator))
            plan.edits.append(Edit(*module.span(decorator), "contextmanager"))
        elif fixture or is_mark(module, decorator):
            start = module.offset(decorator.lineno, 0)
            plan.remove(decorator, start, module.offset(line, 0))


def _is_fixture(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in ("pytest.fixture", "fixture")


def _is_blind(module: Module, node: FunctionNode) -> bool:
    others = [d for d in node.decorator_list if not is_mark(module, d)]
    targets = [d.func if isinstance(d, ast.Call) else d for d in others]
    return {ast.unparse(target).rpartition(".")[2] for target in targets} <= _BLIND


def _remove_annotations(module: Module, plan: Plan, node: FunctionNode) -> None:
    own = node.args
    positional = [*own.posonlyargs, *own.args]
    defaults = [None] * (len(positional) - len(own.defaults)) + [*own.defaults, *own.kw_defaults]
    for argument, default in zip([*positional, *own.kwonlyargs], defaults, strict=True):
        if argument.annotation is not None:
            start = module.span(argument)[0] + len(argument.arg.encode())
            stop = module.span(default)[0] if default else module.span(argument)[1]
            plan.skipped.add(id(argument.annotation))
            plan.edits.append(Edit(start, stop, "=" if default else ""))
    for rest in (own.vararg, own.kwarg):
        if rest is not None and rest.annotation is not None:
            start, stop = module.span(rest)
            plan.remove(rest.annotation, start + len(rest.arg.encode()), stop)
    if node.returns is not None:
        _, start = _parentheses(module, node)
        plan.remove(node.returns, start, module.span(node.returns)[1])


def _shorten_docstring(module: Module, plan: Plan, node: FunctionNode | ast.ClassDef) -> None:
    text = ast.get_docstring(node)
    statement = node.body[0]
    if text and "\n\n" in text and "\\" not in text and '"""' not in text:
        paragraph = text.partition("\n\n")[0]
        pad = "\n" + " " * statement.col_offset
        short = paragraph.replace("\n", pad)
        plan.edits.append(Edit(*module.span(statement), f'"""{short}"""'))


def _parentheses(module: Module, node: FunctionNode) -> tuple[int, int]:
    """From before ``(`` to behind ``)`` of the parameters."""
    lines = module.lines[node.lineno - 1 : node.end_lineno]
    reader = io.StringIO("".join(lines)).readline
    depth, start = 0, 0
    for token in tokenize.generate_tokens(reader):
        if token.type != tokenize.OP or token.string not in ("(", ")", "[", "]", "{", "}"):
            continue
        if token.string == "(" and depth == 0:
            start = _bytes(module, node, *token.start)
        depth += 1 if token.string in "([{" else -1
        if depth == 0 and token.string == ")":
            return start, _bytes(module, node, *token.end)
    raise AssertionError(f"{node.name} has no parameters")


def _bytes(module: Module, node: FunctionNode, line: int, column: int) -> int:
    line += node.lineno - 1
    return module.offset(line, len(module.lines[line - 1][:column].encode()))


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function's body, nested functions' included."""
    for statement in getattr(node, "body", []):
        yield from ast.walk(statement)


def words_of(statement: ast.stmt) -> set[str]:
    """Every name that occurs in it, bound or not."""
    names = bound_names(statement)
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names
