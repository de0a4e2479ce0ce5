"""The modules that a script may take parts of: their text, and what each of their names is."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.errors import BadInputError

_STANDINS = {
    "harness.isolation.ranks": "harness.repro.standins.ranks",
    "harness.oracles.gloo": "harness.repro.standins.gloo",
}
# What a script can't have: it is the harness.
_KEPT = ("virtual_tpu", "isolation", "lanes", "plugin", "session", "commands", "fixtures")


@dataclass(frozen=True)
class Imported:
    """What an import binds a name to: a module, or an attribute of it.

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
    """One module: nothing of it is executed."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines(keepends=True)
        self.tree = ast.parse(self.text)
        self.is_package = path.name == "__init__.py"
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line.encode()))

    def offset(self, line: int, column: int) -> int:
        """Bytes before a position as ``ast`` gives it."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        """The node's place in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    @cached_property
    def imports(self) -> dict[str, Imported]:
        """Names bound by imports at the module's level, those for type checkers included."""
        found = {}
        for statement in self.tree.body:
            for node in _for_types_only(statement) or [statement]:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    found.update(self.bound_by(node))
        return found

    def roots(self, name: str) -> list[Imported]:
        """All of ``import name``, ``import name.a``, ... at the module's level."""
        nodes = [node for node in self.tree.body if isinstance(node, ast.Import)]
        modules = [alias.name for node in nodes for alias in node.names if alias.asname is None]
        return [Imported(m, root=True) for m in modules if m.partition(".")[0] == name]

    def bound_by(self, node: ast.Import | ast.ImportFrom) -> dict[str, Imported]:
        """Name to what the import statement binds it to."""
        if isinstance(node, ast.Import):
            return {
                alias.asname or alias.name.split(".")[0]: Imported(
                    alias.name, root=alias.asname is None
                )
                for alias in node.names
            }
        module = self._absolute(node)
        return {alias.asname or alias.name: Imported(module, alias.name) for alias in node.names}

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        package = package[: len(package) - node.level + (1 if self.is_package else 0)]
        return ".".join([*package, *([node.module] if node.module else [])])

    @cached_property
    def definitions(self) -> dict[str, list[ast.stmt]]:
        """Names to the statements of the module's level that bind or extend them, in order."""
        found: defaultdict[str, list[ast.stmt]] = defaultdict(list)
        for statement in self.tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in () if _for_types_only(statement) else sorted(bound_names(statement)):
                    found[name].append(statement)
        return dict(found)

    @cached_property
    def effects(self) -> list[ast.stmt]:
        """Statements that bind nothing: what importing the module does."""
        return [
            statement
            for statement in self.tree.body
            if not isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.Pass)
            and not _for_types_only(statement)
            and not bound_names(statement)
            and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        ]

    @cached_property
    def unused_imports(self) -> dict[str, Imported]:
        """Imports that the module makes no use of: they are there for what they do."""
        used = {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}
        exported = "__all__" in self.definitions or self.is_package
        found = {n: i for n, i in self.imports.items() if i.module != "__future__"}
        return {} if exported else {n: i for n, i in found.items() if n not in used}


class Sources:
    """The modules below a project's root, and the harness's own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, Module] = {}

    def is_local(self, name: str) -> bool:
        """Whether a script takes what it needs of the module instead of importing it."""
        if name.split(".", maxsplit=1)[0] == "harness":
            return True
        path = _path(name)
        return (
            path is not None
            and path.is_relative_to(self._root)
            and "site-packages" not in path.parts
        )

    def module(self, name: str) -> Module:
        """The module's source, or that of what stands in for it.

        Raises BadInputError for a part of the harness that no script can have.
        """
        name = _STANDINS.get(name, name)
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
        """Whether a module of that name is there."""
        return name in sys.modules or _path(name) is not None


def bound_names(node: ast.AST) -> set[str]:
    """Names that a statement binds in its own scope, imports included."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Lambda):
        return set()
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store | ast.Del) else set()
    if isinstance(node, ast.alias):
        return {node.asname or node.name.split(".")[0]}
    own: set[str] = set()
    if isinstance(node, _CAPTURES):
        own = {name for key in ("name", "rest") if (name := getattr(node, key, None))}
    if isinstance(node, _COMPREHENSIONS):  # only := reaches out of it
        walrus = (n for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        return {n.target.id for n in walrus}
    return own.union(*map(bound_names, ast.iter_child_nodes(node)))


_CAPTURES = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _for_types_only(statement: ast.stmt) -> list[ast.stmt]:
    """What stands under ``if TYPE_CHECKING:``; [] for any other statement."""
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
        return statement.body
    return []


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
