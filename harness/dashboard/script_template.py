"""A template as data, for a script that renders it in a browser.

The script knows text, ``{{ name.attribute }}``, ``for`` and ``if`` with ``else``, ``with`` for one
variable, and ``include`` of a file. All else is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from jinja2 import Environment, nodes


def script(environment: Environment, name: str) -> str:
    """Return the statement that defines ``TEMPLATE`` as the parts of the template."""
    return f"const TEMPLATE = {json.dumps(_parts(environment, _body(environment, name)))};\n"


def _body(environment: Environment, name: str) -> Sequence[nodes.Node]:
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, name)
    return environment.parse(source).body


def _parts(environment: Environment, body: Sequence[nodes.Node]) -> list[object]:
    """Return each part: text, a value, or statements that depend on a value."""

    def inner(body: Sequence[nodes.Node]) -> list[object]:
        return _parts(environment, body)

    parts: list[object] = []
    for node in body:
        match node:
            case nodes.Output():
                parts += inner(node.nodes)
            case nodes.TemplateData():
                parts.append(node.data)
            case nodes.Name() | nodes.Getattr():
                parts.append({"path": _path(node)})
            case nodes.Include(template=nodes.Const(value=name)):
                parts += inner(_body(environment, name))
            case nodes.If(elif_=[]):
                then, otherwise = inner(node.body), inner(node.else_)
                parts.append({"path": _path(node.test), "then": then, "otherwise": otherwise})
            case nodes.For(target=nodes.Name(name=name), test=None):
                then, otherwise = inner(node.body), inner(node.else_)
                branches = {"as": name, "then": then, "otherwise": otherwise}
                parts.append({"path": _path(node.iter), **branches})
            case nodes.With(targets=[nodes.Name(name=name)], values=[value]):
                branches = {"as": name, "then": inner(node.body), "otherwise": []}
                parts.append({"path": _path(value), **branches})
            case _:
                raise _refused(node)
    return parts


def _path(node: nodes.Node) -> list[str]:
    match node:
        case nodes.Name():
            return [node.name]
        case nodes.Getattr():
            return [*_path(node.node), node.attr]
    raise _refused(node)


def _refused(node: nodes.Node) -> TypeError:
    return TypeError(f"line {node.lineno}: the script does not know {type(node).__name__}")
