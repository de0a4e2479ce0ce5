"""The modules that a script may take parts of: their text, and what each of their names is."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

import libcst as cst
from libcst.helpers import get_absolute_module_from_package_for_import
from libcst.metadata import (
    BuiltinScope,
    GlobalScope,
    ImportAssignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    Scope,
    ScopeProvider,
)
from packaging.specifiers import SpecifierSet

from harness.errors import BadInputError
from harness.repro.nodes import find

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Import = cst.Import | cst.ImportFrom

_STANDINS = {
    "harness.isolation.ranks": "harness.repro.standins.ranks",
    "harness.job.ranks": "harness.repro.standins.job_ranks",
    "harness.oracles.gloo": "harness.repro.standins.gloo",
}
# Of these versions of jaxlib, which need none of what the harness's modules do for older ones, nor
# for groups along the axes of a mesh.
_PLAIN_JAXLIB = SpecifierSet(">=0.7,<0.12")
_OF_PLAIN_JAXLIB = {
    "harness.ir.parse": "harness.repro.standins.parse",
    "harness.oracles.replicas": "harness.repro.standins.replicas",
}
# What a script can't have: it is the harness.
_KEPT = ("isolation", "lanes", "plugin", "session", "commands", "fixtures")


@dataclass(frozen=True)
class Imported:
    """Target to which an import binds a name: a module, or an attribute of it.

    ``root`` is ``import a.b``, which binds ``a``.
    """

    module: str
    attribute: str | None = None
    root: bool = False

    @property
    def path(self) -> str:
        """The dotted name of what is imported."""
        return f"{self.module}.{self.attribute}" if self.attribute else self.module


class Module:
    """Module read from its source, without executing it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        tree = cst.parse_module(path.read_text(encoding="utf-8"))
        self._wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
        self.tree = self._wrapper.module
        self.parents = self._wrapper.resolve(ParentNodeProvider)
        scopes = self._wrapper.resolve(ScopeProvider).values()
        self._scopes: set[Scope] = {scope for scope in scopes if isinstance(scope, Scope)}
        self._is_package = path.name == "__init__.py"

    def code(self, node: cst.CSTNode) -> str:
        """Return the node's text."""
        return self.tree.code_for_node(node)

    def where(self, node: cst.CSTNode) -> str:
        """Return the file and the line of a node, for messages."""
        return f"{self.path}:{self._wrapper.resolve(PositionProvider)[node].start.line}"

    @cached_property
    def _own(self) -> GlobalScope:
        return next(scope for scope in self._scopes if isinstance(scope, GlobalScope))

    @cached_property
    def global_names(self) -> dict[cst.Name, Import | None]:
        """Return the nodes whose names refer to a global of the module or to a builtin.

        The value is the import inside a function that binds the name, or None.
        """
        names: dict[cst.Name, Import | None] = {}
        for statement in find(self.tree, cst.Global):
            names.update((item.name, None) for item in statement.names)
        for assignment in self._own.assignments:
            node: object = getattr(assignment, "node", None)
            name = node.name if isinstance(node, cst.FunctionDef | cst.ClassDef) else node
            if isinstance(name, cst.Name):
                names[name] = None
        for access in (access for scope in self._scopes for access in scope.accesses):
            inner = [a for a in access.referents if not isinstance(a.scope, _OUTSIDE)]
            imports = [a.node for a in inner if isinstance(a, ImportAssignment)]
            if not inner or len(imports) == len(inner):
                first = imports[0] if imports else None
                assert first is None or isinstance(first, Import)
                names[_first_name(access.node)] = first
        return names

    @cached_property
    def imports(self) -> dict[str, Imported]:
        """Names bound by imports at the module's level, those for type checkers included."""
        imports = {}
        for statement in self.tree.body:
            inner = statement.body.body if self._is_for_types(statement) else [statement]
            for node in imports_in(inner):
                imports.update(self.bound_by(node))
        return imports

    def roots(self, name: str) -> list[Imported]:
        """Return the imports ``import name``, ``import name.a``, ... at the module's level."""
        nodes = [node for node in imports_in(self.tree.body) if isinstance(node, cst.Import)]
        bindings = [imported for node in nodes for imported in self._bound_by(node)]
        return [i for bound, i in bindings if i.root and bound == name]

    def bound_by(self, node: Import) -> dict[str, Imported]:
        """Name to what the import statement binds it to."""
        return dict(self._bound_by(node))

    def _bound_by(self, node: Import) -> Iterator[tuple[str, Imported]]:
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            name, bound = alias.evaluated_name, alias.evaluated_alias
            if isinstance(node, cst.Import):
                yield bound or name.partition(".")[0], Imported(name, root=bound is None)
            else:
                package = self.name if self._is_package else self.name.rpartition(".")[0]
                module = get_absolute_module_from_package_for_import(package, node)
                yield bound or name, Imported(module or "", name)

    @cached_property
    def definitions(self) -> dict[str, list[Statement]]:
        """Names to the statements of the module's level that bind or extend them, in order."""
        statements: defaultdict[str, set[Statement]] = defaultdict(set)
        for assignment in self._own.assignments:
            statement = self._statement_of(getattr(assignment, "node", self.tree))
            if statement is not None and not imports_in([statement]):
                statements[assignment.name].add(statement)
        order = {statement: place for place, statement in enumerate(self.tree.body)}
        return {name: sorted(statements[name], key=order.__getitem__) for name in statements}

    def _statement_of(self, node: cst.CSTNode) -> Statement | None:
        """Return the module-level statement that binds the node's name outside of any function."""
        while not isinstance(parent := self.parents.get(node), cst.Module):
            if parent is None or isinstance(parent, cst.FunctionDef):
                return None
            node = parent
        assert isinstance(node, Statement)
        return None if self._is_for_types(node) else node

    @cached_property
    def effects(self) -> list[Statement]:
        """Statements that bind nothing: what importing the module does."""
        binding = {
            statement for statements in self.definitions.values() for statement in statements
        }
        return [
            statement
            for statement in self.tree.body
            if statement not in binding
            and not self._is_for_types(statement)
            and not imports_in([statement])
            and not _does_nothing(statement)
        ]

    @cached_property
    def unused_imports(self) -> dict[str, Imported]:
        """Imports that the module makes no use of: they are there for what they do."""
        if "__all__" in self.definitions or self._is_package:
            return {}
        used = {name.value for name in self.global_names}
        imports = {n: i for n, i in self.imports.items() if i.module != "__future__"}
        return {n: i for n, i in imports.items() if n not in used}

    def _is_for_types(self, statement: cst.CSTNode) -> TypeGuard[cst.If]:
        return isinstance(statement, cst.If) and "TYPE_CHECKING" in self.code(statement.test)


_OUTSIDE = (GlobalScope, BuiltinScope)
_CONSTANT = cst.SimpleString | cst.ConcatenatedString | cst.Integer | cst.Float | cst.Ellipsis


def _does_nothing(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    only = statement.body[0]
    return isinstance(only, cst.Pass) or (
        isinstance(only, cst.Expr) and isinstance(only.value, _CONSTANT)
    )


def imports_in(statements: Iterable[cst.CSTNode]) -> list[Import]:
    """Return the imports among the statements, without those nested in one."""
    lines = (line for line in statements if isinstance(line, cst.SimpleStatementLine))
    return [node for line in lines for node in line.body if isinstance(node, Import)]


def _first_name(node: cst.CSTNode) -> cst.Name:
    while isinstance(node, cst.Attribute):
        node = node.value
    return cst.ensure_type(node, cst.Name)


class Sources:
    """The modules below a project's root, and the harness's own."""

    def __init__(self, root: Path, jaxlib: str = "") -> None:
        """``jaxlib`` is the version that the script runs with."""
        self._root = root
        plain = jaxlib[:1].isdigit() and jaxlib in _PLAIN_JAXLIB
        self._standins = {**_STANDINS, **(_OF_PLAIN_JAXLIB if plain else {})}
        self._modules: dict[str, Module] = {}

    def is_local(self, name: str) -> bool:
        """Return whether a script copies code from the module instead of importing it."""
        if name.split(".", maxsplit=1)[0] == "harness":
            return True
        path = _path(name)
        return (
            path is not None
            and path.is_relative_to(self._root)
            and "site-packages" not in path.parts
        )

    def module(self, name: str) -> Module:
        """Return the module's source, or that of its stand-in.

        Raises BadInputError for a part of the harness that no script can have.
        """
        name = self._standins.get(name, name)
        parts = name.split(".")
        if parts[0] == "harness" and parts[1:2] and parts[1] in _KEPT:
            raise BadInputError(f"{name} is needed, a part of the harness that a script can't have")
        if name not in self._modules:
            path = _path(name)
            if path is None or path.suffix != ".py":
                raise BadInputError(f"module {name}: expected a Python source file")
            self._modules[name] = Module(name, path)
        return self._modules[name]

    def is_module(self, name: str) -> bool:
        """Return whether a module of that name exists."""
        return name in sys.modules or _path(name) is not None


def _path(name: str) -> Path | None:
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return Path(file).resolve() if file else None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec and spec.has_location and spec.origin else None
