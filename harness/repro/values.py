"""A parameter's value as source: its repr if that says it all, else the expression it came from."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from typing import Any

import libcst as cst
import pytest

from harness.errors import BadInputError
from harness.repro.bundle import Bundle, Expression, Named
from harness.repro.nodes import walk
from harness.repro.resolve import Ref
from harness.repro.source import Imported, Module, Statement
from harness.repro.uses import Use

_PLAIN = (bool, int, float, str, bytes, type(None))


class _UnknownError(Exception):
    """There is no such short source."""


def source_of(bundle: Bundle, item: pytest.Function, name: str) -> Expression:
    """Return the source of parameter ``name``; raise BadInputError if there is none."""
    callspec = item.callspec
    module = bundle.sources.module(item.module.__name__)
    try:
        return _literal(bundle, module, callspec.params[name])
    except _UnknownError:
        pass
    for owner, call in _parametrizations(bundle, item):
        if name in _names(owner, call):
            index = _index(item, name, callspec.params[name])
            return _element(bundle, owner, call, name, index)
    raise BadInputError(f"{item.nodeid}: the value of {name!r} has no source that can be found")


def quoted(text: str) -> str:
    """Return a literal in double quotes, unless the text contains some itself."""
    plain = repr(text)
    return plain if '"' in plain or "\\'" in plain else f'"{plain[1:-1]}"'


def _literal(bundle: Bundle, module: Module, value: Any) -> Expression:
    named = _global(bundle, module, value)
    if named is not None:
        return (named,)
    if type(value) in _PLAIN:
        return (_plain(value),)
    if type(value) in (tuple, list, dict):
        return _container(bundle, module, value)
    if f"{type(value).__module__}.{type(value).__qualname__}" == "torch.dtype":
        bundle.require(Imported("torch", root=True), "torch")
        return (repr(value),)
    if dataclasses.is_dataclass(value):
        return _dataclass(bundle, module, value)
    raise _UnknownError


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _container(bundle: Bundle, module: Module, value: Any) -> Expression:
    if isinstance(value, dict):
        pairs = [
            (*_literal(bundle, module, key), ": ", *_literal(bundle, module, entry))
            for key, entry in value.items()
        ]
        return ("{", *_separated(pairs), "}")
    inner = _separated([_literal(bundle, module, entry) for entry in value])
    if isinstance(value, list):
        return ("[", *inner, "]")
    return ("(", *inner, ",)" if len(value) == 1 else ")")


def _dataclass(bundle: Bundle, module: Module, value: Any) -> Expression:
    constructor = _global(bundle, module, type(value))
    if constructor is None:
        raise _UnknownError
    fields = [f for f in dataclasses.fields(value) if f.init]
    parts = [(f"{f.name}=", *_literal(bundle, module, getattr(value, f.name))) for f in fields]
    return (constructor, "(", *_separated(parts), ")")


def _separated(parts: list[Expression]) -> Expression:
    return tuple(piece for part in parts for piece in (", ", *part))[1:]


def _global(bundle: Bundle, module: Module, value: Any) -> Named | None:
    """Return the module-level variable that holds this value, if any; not for plain values."""
    if isinstance(value, (*_PLAIN, tuple, list, dict)):
        return None
    for name, other in vars(sys.modules[module.name]).items():
        if other is value:
            if name in module.definitions:
                return bundle.require(Ref(module.name, name), asked_by=module.name)
            if name in module.imports:
                return _imported(bundle, module, name)
    return None


def _imported(bundle: Bundle, module: Module, name: str) -> Named | None:
    meaning = bundle.meaning(module, Use(name, cst.Name(name)))
    return bundle.require(meaning.target, meaning.spelling, module.name) if meaning else None


def _parametrizations(bundle: Bundle, item: pytest.Function) -> list[tuple[Module, cst.Call]]:
    """Return each ``parametrize(...)`` of the function and its classes, with its module."""
    module = bundle.sources.module(item.module.__name__)
    names = [item.originalname]
    names += [node.name for node in item.listchain() if isinstance(node, pytest.Class)]
    calls = []
    for node in walk(module.tree):
        if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.name.value in names:
            calls += [_call(bundle, module, decorator.decorator) for decorator in node.decorators]
    return [pair for pair in calls if pair is not None]


def _call(
    bundle: Bundle, module: Module, decorator: cst.BaseExpression
) -> tuple[Module, cst.Call] | None:
    while isinstance(decorator, cst.Name):
        name = decorator.value
        imported = module.imports.get(name)
        if imported is not None and imported.attribute:
            if not bundle.sources.is_local(imported.module):
                return None
            module, name = bundle.sources.module(imported.module), imported.attribute
        assigned = [_assigned(statement) for statement in module.definitions.get(name, [])]
        if not assigned or assigned[-1] is None:
            return None
        decorator = assigned[-1]
    is_one = isinstance(decorator, cst.Call) and _ends_with(module, decorator.func, "parametrize")
    return (module, decorator) if is_one and isinstance(decorator, cst.Call) else None


def _assigned(statement: Statement) -> cst.BaseExpression | None:
    last = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else None
    return last.value if isinstance(last, cst.Assign | cst.AnnAssign) else None


def _ends_with(module: Module, node: cst.CSTNode, text: str) -> bool:
    return module.code(node).endswith(text)


def _index(item: pytest.Function, name: str, value: Any) -> int:
    """Return the value's index in its list; pytest's own index counts the whole product."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = [text.strip() for text in names]
        if name in names:
            for index, entry in enumerate(mark.args[1]):
                values = (entry,) if len(names) == 1 else entry
                values = entry.values if _is_param(entry) else values
                if values[names.index(name)] is value:
                    return index
    raise BadInputError(f"{item.nodeid}: the value of {name!r} can't be found in its list")


def _is_param(entry: Any) -> bool:
    return type(entry).__name__ == "ParameterSet"


def _names(module: Module, call: cst.Call) -> list[str]:
    try:
        names = ast.literal_eval(module.code(call.args[0].value))
    except (ValueError, IndexError):
        return []
    texts = names.split(",") if isinstance(names, str) else list(names)
    return [text.strip() for text in texts]


def _element(bundle: Bundle, module: Module, call: cst.Call, name: str, index: int) -> Expression:
    names, values = _names(module, call), call.args[1].value
    position = names.index(name)
    if isinstance(values, cst.List | cst.Tuple) and not _starred(values):
        entry = values.elements[index].value
        if isinstance(entry, cst.Call) and _ends_with(module, entry.func, "pytest.param"):
            return bundle.expression(module, entry.args[position].value)
        if len(names) == 1:
            return bundle.expression(module, entry)
        if isinstance(entry, cst.Tuple | cst.List) and not _starred(entry):
            return bundle.expression(module, entry.elements[position].value)
        return (*bundle.expression(module, entry), f"[{position}]")
    tail = "" if len(names) == 1 else f"[{position}]"
    return ("list(", *bundle.expression(module, values), f")[{index}]{tail}")


def _starred(node: cst.List | cst.Tuple) -> bool:
    return any(isinstance(entry, cst.StarredElement) for entry in node.elements)
