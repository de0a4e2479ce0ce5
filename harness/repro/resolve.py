"""Resolve global names, each to a definition that goes into the script or to an import."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from harness.errors import BadInputError
from harness.repro.source import Imported, Module, Sources
from harness.repro.uses import Use


@dataclass(frozen=True)
class Ref:
    """A name that a module of the suites or of the harness defines."""

    module: str
    name: str


Target = Ref | Imported


@dataclass(frozen=True)
class Meaning:
    """Meaning of a use: the target, the expression that names it, and the name to prefer."""

    target: Target
    node: cst.Name | cst.Attribute
    spelling: str = ""


def meaning(sources: Sources, module: Module, use: Use) -> Meaning | None:
    """Resolve a use; return None for a builtin, or a name that Python sets in every module.

    Raises BadInputError for what a script can't have: ``__file__``, a module as a value.
    """
    imported = use.imported or module.imports.get(use.name)
    if imported is None:
        if use.name == "__file__":
            raise BadInputError(f"{module.where(use.node)}: a script has no __file__")
        own = use.name in module.definitions
        return Meaning(Ref(module.name, use.name), use.node) if own else None
    if not sources.is_local(imported.module):
        return Meaning(imported, use.node, use.name)
    if imported.attribute:
        value = _member(sources, imported.module, imported.attribute)
        if not isinstance(value, str):
            return Meaning(value, use.node, use.name if isinstance(value, Imported) else "")
    else:
        value = imported.module.split(".", 1)[0] if imported.root else imported.module
    for attribute in use.attributes:
        value = _member(sources, value, attribute.attr.value)
        if not isinstance(value, str):
            return Meaning(value, attribute, f"{use.name}_{attribute.attr.value}")
    raise BadInputError(
        f"{module.where(use.node)}: {use.name} is used as a value: a script has no module {value}"
    )


def _member(sources: Sources, name: str, attribute: str) -> Target | str:
    """Return what a local module calls by that name: its own, another's, or a module's name."""
    module = sources.module(name)
    if attribute in module.definitions:
        return Ref(module.name, attribute)
    imported = module.imports.get(attribute)
    if imported is not None:
        if not sources.is_local(imported.module):
            return imported
        if imported.attribute:
            return _member(sources, imported.module, imported.attribute)
        return imported.module
    if sources.is_module(f"{name}.{attribute}"):
        return f"{name}.{attribute}"
    raise BadInputError(f"{module.path}: expected it to define {attribute}")
