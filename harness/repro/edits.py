"""Edits of a definition for a script: markers, fixtures and annotations are removed."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
import pytest

from harness.errors import BadInputError
from harness.repro.nodes import find, walk
from harness.repro.source import Module

WIDTH = 100
# Decorators that never look at annotations; those of others stay.
_BLIND = {"abstractmethod", "cache", "cached_property", "classmethod", "composite"}
_BLIND |= {"contextmanager", "fixture", "given", "lru_cache", "no_grad", "override", "property"}
_BLIND |= {"setter", "settings", "staticmethod", "wraps"}
Change = Callable[[Any], cst.CSTNode | cst.RemovalSentinel]


@dataclass
class Plan:
    """Edits to make to one statement."""

    changes: defaultdict[cst.CSTNode, list[Change]] = field(
        default_factory=lambda: defaultdict(list)
    )
    removed: set[cst.CSTNode] = field(default_factory=set)  # nothing is read in these
    is_context: bool = False

    def change(self, node: cst.CSTNode, **fields: Any) -> None:
        """Replace fields of the node."""
        self.changes[node].append(lambda now: now.with_changes(**fields))

    def replace(self, node: cst.CSTNode, other: cst.CSTNode) -> None:
        """Put another node in the place of this one."""
        self.changes[node].append(lambda _: other)

    def remove(self, node: cst.CSTNode) -> None:
        """Take the node out."""
        self.removed.add(node)
        self.changes[node].append(lambda _: cst.RemoveFromParent())


class Edited(cst.CSTTransformer):
    """Makes the changes of a plan, inner ones first."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._changes = plan.changes

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        for change in self._changes.get(original_node, ()):
            updated_node = change(updated_node)
        return updated_node


def plain(module: Module, statement: cst.CSTNode, *, whole: bool = False) -> Plan:
    """Without markers and annotations; of docstrings the first paragraph, unless ``whole``."""
    plan = Plan()
    for node in walk(statement):
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            _remove_decorators(module, plan, node)
            if not whole:
                _shorten_docstring(plan, node)
        if isinstance(node, cst.FunctionDef) and _is_blind(module, node):
            _remove_annotations(module, plan, node)
        if isinstance(node, cst.AnnAssign) and node.value and not _is_field(module, node):
            plan.removed.add(node.annotation)
            plan.changes[node].append(
                lambda now: cst.Assign([cst.AssignTarget(now.target)], now.value)
            )
    return plan


def _is_field(module: Module, node: cst.AnnAssign) -> bool:
    block = module.parents[module.parents[node]]
    return isinstance(module.parents.get(block), cst.ClassDef)


def take_fixtures(module: Module, plan: Plan, function: cst.FunctionDef) -> list[str]:
    """Make a test or a fixture a plain function of those parameters that it makes use of.

    Returns their names. ``request`` gives way to what it is asked for.
    """
    if any(_is_fixture(module, decorator) for decorator in function.decorators):
        plan.is_context = yields(function)
    own = function.params
    parameters = [*own.posonly_params, *own.params, *own.kwonly_params]
    used = {name.value for name in find(function.body, cst.Name)}
    kept = [p.name.value for p in parameters if p.name.value in used | {"self", "cls"}]
    if "request" in kept:
        kept = _without_request(module, plan, function, kept)
    for parameter in parameters:
        if parameter.name.value in kept:
            _remove_annotation(plan, parameter)
        else:
            plan.remove(parameter)
    if "param" in kept and "param" not in [p.name.value for p in parameters]:
        more = cst.Param(cst.Name("param"))
        plan.changes[own].append(lambda now: now.with_changes(params=[*now.params, more]))
    plan.changes[function].append(lambda now: _with_short_head(module, function, now))
    return [name for name in kept if name not in ("self", "cls")]


def _without_request(
    module: Module, plan: Plan, function: cst.FunctionDef, kept: list[str]
) -> list[str]:
    known = 0
    kept = [name for name in kept if name != "request"]
    for node in walk(function.body):
        text = module.code(node) if isinstance(node, cst.Attribute) else ""
        if text == "request.param":
            plan.replace(node, cst.Name("param"))
            kept = [*kept, *({"param"} - set(kept))]
            known += 1
    uses = [name for name in find(function.body, cst.Name) if name.value == "request"]
    if known < len(uses):
        raise BadInputError(
            f"{module.where(uses[0])}: a script has no pytest request: only "
            "request.param can be replaced"
        )
    return kept


def is_mark(module: Module, decorator: cst.BaseExpression) -> bool:
    """Return whether a decorator is a pytest marker, under any name in the module."""
    text = module.code(decorator)
    if text.startswith("pytest.mark."):
        return True
    value: object = sys.modules.get(module.name)
    for part in text.split(".") if text.replace(".", "").isidentifier() else [""]:
        value = getattr(value, part, None)
    return isinstance(value, pytest.MarkDecorator)


def yields(function: cst.CSTNode) -> bool:
    """Return whether the function, or a function inside it, is a generator."""
    return bool(find(function, cst.Yield))


def _remove_decorators(module: Module, plan: Plan, node: cst.FunctionDef | cst.ClassDef) -> None:
    for decorator in node.decorators:
        fixture = _is_fixture(module, decorator)
        if fixture and yields(node):
            plan.removed.add(decorator)
            plan.change(decorator, decorator=cst.Name("contextmanager"))
        elif fixture or is_mark(module, decorator.decorator):
            plan.remove(decorator)


def _called(module: Module, decorator: cst.Decorator) -> str:
    target = decorator.decorator
    return module.code(target.func if isinstance(target, cst.Call) else target)


def _is_fixture(module: Module, decorator: cst.Decorator) -> bool:
    return _called(module, decorator) in ("pytest.fixture", "fixture")


def _is_blind(module: Module, node: cst.FunctionDef) -> bool:
    others = [each for each in node.decorators if not is_mark(module, each.decorator)]
    return {_called(module, each).rpartition(".")[2] for each in others} <= _BLIND


def _remove_annotations(module: Module, plan: Plan, node: cst.FunctionDef) -> None:
    for parameter in walk(node.params):
        if isinstance(parameter, cst.Param):
            _remove_annotation(plan, parameter)
    if node.returns is not None:
        plan.removed.add(node.returns)
        plan.change(node, returns=None)
    plan.changes[node].append(lambda now: _with_short_head(module, node, now))


def _remove_annotation(plan: Plan, parameter: cst.Param) -> None:
    if parameter.annotation:
        plan.removed.add(parameter.annotation)
        equal = _EQUAL if parameter.default else cst.MaybeSentinel.DEFAULT
        plan.change(parameter, annotation=None, equal=equal)


_NO_SPACE = cst.SimpleWhitespace("")
_EQUAL = cst.AssignEqual(_NO_SPACE, _NO_SPACE)


def _with_short_head(
    module: Module, original: cst.FunctionDef, now: cst.FunctionDef
) -> cst.FunctionDef:
    """Put the head of the function, now without annotations, on one line if it fits."""
    short = now.with_changes(whitespace_before_params=_NO_SPACE, params=_joined(now.params))
    head = module.code(short.with_changes(decorators=[], leading_lines=[], body=_EMPTY))
    indent, node = 0, module.parents[original]
    while not isinstance(node, cst.Module):
        indent, node = indent + 4 * isinstance(node, cst.IndentedBlock), module.parents[node]
    fits = "\n" not in head.rstrip() and indent + len(head.partition(" ...")[0].rstrip()) <= WIDTH
    return short if fits else now


def _joined(node: cst.Parameters) -> cst.Parameters:
    """Parameters with one blank behind each comma."""
    plain = {"comma": cst.MaybeSentinel.DEFAULT, "whitespace_after_param": _NO_SPACE}
    star = cst.ParamStar(cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    plan = Plan()
    for child in node.children:
        if isinstance(child, cst.Param):
            plan.change(child, **plain)
        elif isinstance(child, cst.ParamStar):
            plan.replace(child, star)
    return cst.ensure_type(node.visit(Edited(plan)), cst.Parameters)


_EMPTY = cst.SimpleStatementSuite([cst.Expr(cst.Ellipsis())])


def _shorten_docstring(plan: Plan, node: cst.FunctionDef | cst.ClassDef) -> None:
    first = node.body.body[0]
    text = node.get_docstring()
    if text and "\n\n" in text and "\\" not in text and '"""' not in text:
        (literal,) = find(first, cst.SimpleString)
        paragraph = literal.value.partition("\n\n")[0]
        plan.change(literal, value=f'{paragraph}"""')
