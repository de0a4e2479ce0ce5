"""Which names of a piece of source are global to its module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.errors import BadInputError
from harness.repro.source import Imported, Module, bound_names

_Scope = dict[str, Imported | None]  # None for a name of the scope's own
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Use:
    """A global name where it stands, and the attributes that are read of it right there.

    ``node`` is what a new name takes the place of. ``imported`` is set for a name that an import
    inside a function binds to a module that the script has no import of.
    """

    name: str
    node: ast.Name
    attributes: tuple[ast.Attribute, ...] = ()
    imported: Imported | None = None


class Reader(ast.NodeVisitor):
    """Collects the uses of global names in all nodes that ``skip`` does not leave out.

    ``words`` are all attributes and texts: what may name a method.
    """

    def __init__(
        self,
        module: Module,
        skip: Callable[[ast.AST], bool],
        is_local: Callable[[str], bool],
    ) -> None:
        self.uses: list[Use] = []
        self.words: set[str] = set()
        self.inner_imports: list[ast.stmt] = []  # of local modules, inside functions
        self._module, self._skip, self._is_local = module, skip, is_local
        self._scopes: list[tuple[str, _Scope]] = []

    def visit(self, node: ast.AST) -> None:
        if not self._skip(node):
            super().visit(node)

    def visit_ImportFrom(self, node: ast.Import | ast.ImportFrom) -> None:
        names = [imported.module for imported in self._module.bound_by(node).values()]
        if node not in self.inner_imports and any(map(self._is_local, names)):
            raise BadInputError(
                f"{self._module.path}:{node.lineno}: an import of {names[0]} that depends on a "
                "condition can't be put into a script"
            )

    def visit_Import(self, node: ast.Import) -> None:
        self.visit_ImportFrom(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node, ())

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = [node]
        while isinstance(chain[-1].value, ast.Attribute):
            chain.append(chain[-1].value)
        self.words |= {link.attr for link in chain}
        inner = chain[-1].value
        if isinstance(inner, ast.Name):
            self._name(inner, tuple(reversed(chain)))
        else:
            self.visit(inner)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.words.add(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(node.decorator_list)
        self._visit_all([node.returns] if node.returns else [])
        self._function(node, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        own: _Scope = dict.fromkeys(set().union(*map(bound_names, node.body)))
        self._inside("class", own, node.body)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node.generators, [node.elt])

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, [node.key, node.value])

    def _comprehension(self, generators: list[ast.comprehension], values: list[ast.expr]) -> None:
        first, *others = generators
        self.visit(first.iter)
        own: _Scope = {n: None for g in generators for n in bound_names(g.target)}
        self._inside("function", own, [first.target, *first.ifs, *others, *values])

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _function(self, node: _Function, body: list[ast.stmt] | list[ast.expr]) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        named += [a for a in (arguments.vararg, arguments.kwarg) if a]
        defaults = [d for d in (*arguments.defaults, *arguments.kw_defaults) if d]
        self._visit_all(defaults)
        self._visit_all([a.annotation for a in named if a.annotation and not self._skip(a)])
        own: _Scope = dict.fromkeys(set().union(*map(bound_names, body)))
        own |= dict.fromkeys(argument.arg for argument in named)
        elsewhere = [n for s in body for n in ast.walk(s) if isinstance(n, ast.Global)]
        for statement in elsewhere:
            for name in statement.names:
                own.pop(name, None)
        own |= self._imported_inside(body)
        self._inside("function", own, body)

    def _imported_inside(self, body: list[ast.stmt] | list[ast.expr]) -> _Scope:
        own: _Scope = {}
        for statement in body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                bound = self._module.bound_by(statement)
                if all(self._is_local(imported.module) for imported in bound.values()):
                    self.inner_imports.append(statement)
                    own |= bound
        return own

    def _inside(self, kind: str, own: _Scope, nodes: Iterable[ast.AST]) -> None:
        self._scopes.append((kind, own))
        self._visit_all(nodes)
        self._scopes.pop()

    def _name(self, node: ast.Name, attributes: tuple[ast.Attribute, ...]) -> None:
        for depth, (kind, own) in enumerate(reversed(self._scopes)):
            if node.id in own and (kind == "function" or depth == 0):
                if (imported := own[node.id]) is not None:
                    self.uses.append(Use(node.id, node, attributes, imported))
                return
        self.uses.append(Use(node.id, node, attributes))
