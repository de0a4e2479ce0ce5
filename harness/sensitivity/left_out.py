"""Code in which no slip is planted: messages, type checks, and what never runs on a TPU."""

from __future__ import annotations

import ast
import re

_OTHER_PLATFORM = re.compile("gpu|cuda|rocm|triton|neuron")
_MESSAGES = ("msg", "message")
_TEXTS = re.compile("(^|_)repr($|_)|_pp_(eqn|rule)$|^__str__$|^str_short$")
_TYPE_CHECKS = {"callable", "hasattr", "isinstance", "issubclass", "type"}
_LOGGING = {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}
_NEGATIONS = (ast.Not, ast.NotEq, ast.NotIn, ast.IsNot)


def is_left_out(node: ast.AST) -> bool:
    """Return whether no slip is planted in a statement or an expression, nor within it."""
    match node:
        case ast.Raise():
            return True
        case ast.FunctionDef(name=name, decorator_list=decorators) if name.endswith(
            (*_MESSAGES, "error")
        ) or _runs_in_cpp(decorators):
            return True
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return bool(_TEXTS.search(name)) or _is_of_other_platform(name)
        case ast.If():
            return _only_checks_types(node)
        case ast.Expr(value=value):
            return _is_message(value)
    return _is_message(node)


def _runs_in_cpp(decorators: list[ast.expr]) -> bool:
    """Return whether JAX calls C++ in place of a method, whose Python never runs."""
    return any(ast.unparse(decorator) == "use_cpp_method()" for decorator in decorators)


def _is_message(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="print")) | ast.keyword(arg="help"):
            return True
        case ast.Call(func=function) if _word(function) in _LOGGING:
            owner, _, name = ast.unparse(function).lower().rpartition(".")
            return "log" in owner or "warn" in f"{owner}{name}"
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.endswith(_MESSAGES)
    return False


def body_is_left_out(node: ast.AST) -> bool:
    """Return whether a branch is for type checkers or another platform alone; its else is not."""
    if not isinstance(node, ast.If):
        return False
    words = {word for part in ast.walk(node.test) if (word := _word(part))}
    if "TYPE_CHECKING" in words:
        return True
    negated = any(isinstance(part, _NEGATIONS) for part in ast.walk(node.test))
    return _is_of_other_platform(" ".join(words)) and not negated


def _is_of_other_platform(name: str) -> bool:
    lower = name.lower()
    return "tpu" not in lower and bool(_OTHER_PLATFORM.search(lower))


def _word(node: ast.AST) -> str:
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word) | ast.Constant(value=str(word)):
            return word
    return ""


def _only_checks_types(node: ast.If) -> bool:
    """Return whether a condition asks for types and all that depends on it is an error."""
    calls = {_word(part.func) for part in ast.walk(node.test) if isinstance(part, ast.Call)}
    raises = isinstance(node.body[-1], ast.Raise) and all(map(is_left_out, node.body))
    return raises and not node.orelse and bool(calls & _TYPE_CHECKS)
