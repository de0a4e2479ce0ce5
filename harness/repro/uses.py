"""Uses of global names in a piece of source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from harness.errors import BadInputError
from harness.repro.nodes import walk
from harness.repro.source import Import, Imported, Module


@dataclass(frozen=True)
class Use:
    """A global name where it stands, and the attributes that are read of it right there.

    ``imported`` is set for a name that an import inside a function binds to a module that the
    script has no import of.
    """

    name: str
    node: cst.Name
    attributes: tuple[cst.Attribute, ...] = ()
    imported: Imported | None = None


class UsesReader:
    """Reader of the global names that a node uses, outside the ``removed`` nodes in it.

    ``words`` are all attributes and strings, which may be names of methods.
    """

    def __init__(
        self,
        module: Module,
        node: cst.CSTNode,
        removed: Collection[cst.CSTNode],
        is_local: Callable[[str], bool],
    ) -> None:
        self.uses: list[Use] = []
        self.words: set[str] = set()
        self.inner_imports: list[Import] = []  # of local modules, inside functions
        self._module, self._is_local = module, is_local
        for inner in walk(node, removed):
            if isinstance(inner, cst.Name) and inner in module.global_names:
                self._name(inner, module.global_names[inner])
            elif isinstance(inner, cst.Attribute):
                self.words.add(inner.attr.value)
            elif isinstance(inner, cst.SimpleString):
                self.words.add(str(inner.evaluated_value))
            elif isinstance(inner, Import):
                self._import(inner)

    def _name(self, node: cst.Name, inner: Import | None) -> None:
        imported = self._module.bound_by(inner).get(node.value) if inner else None
        if inner is not None and (imported is None or not self._is_local(imported.module)):
            return
        self.uses.append(Use(node.value, node, tuple(_attributes(self._module, node)), imported))

    def _import(self, node: Import) -> None:
        module = self._module
        names = [imported.module for imported in module.bound_by(node).values()]
        if not any(map(self._is_local, names)):
            return
        block = module.parents[module.parents[node]]
        in_function = isinstance(module.parents.get(block), cst.FunctionDef)
        if not in_function or not all(map(self._is_local, names)):
            raise BadInputError(
                f"{module.where(node)}: an import of {names[0]} that depends on a condition can't "
                "be put into a script"
            )
        self.inner_imports.append(node)


def _attributes(module: Module, node: cst.CSTNode) -> Iterator[cst.Attribute]:
    while isinstance(parent := module.parents[node], cst.Attribute) and parent.value is node:
        yield parent
        node = parent
