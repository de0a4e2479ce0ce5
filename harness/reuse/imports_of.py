"""The files of a project that a test imports, directly or not, by their import statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from harness.matrix.home import sources

# Calls that import what their first argument names.
_IMPORTING = frozenset(
    {"import_module", "__import__", "importorskip", "run_path", "run_module", "resolve_name"}
)
_COMPUTED = ""


class ProjectImports:
    """Import graph of one project. An import that only running it can resolve stands for all."""

    def __init__(self, project: Path, has: Callable[[Path], bool]) -> None:
        """``has`` says of a path whether it is a part of the project."""
        self._project, self._has = project, cache(has)
        self.direct = cache(self._direct)

    def all_of(self, files: Iterable[Path]) -> frozenset[Path]:
        """Return the files, what they import in the project, and the ``conftest.py`` of each."""
        seen: set[Path] = set()
        todo = [*files]
        while todo:
            file = todo.pop()
            if file not in seen:
                seen.add(file)
                todo += self.direct(file)
        return frozenset(seen)

    def _direct(self, file: Path) -> list[Path]:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return []  # it can't be imported either
        folders = [folder for folder in file.parents if self._has(folder)]
        around = [folder / name for folder in folders for name in ("conftest.py", "__init__.py")]
        modules = set(_modules(tree, file.parent.relative_to(_top(file.parent)).parts))
        if _COMPUTED in modules:
            around += [path for path in sources(self._project) if path.suffix == ".py"]
        names = modules - {_COMPUTED}
        imported = [path for name in names for path in self._files(name, file.parent)]
        return [path for path in (*around, *imported) if self._has(path) and path.is_file()]

    def _files(self, name: str, folder: Path) -> Iterator[Path]:
        """Yield each file that can be meant by the module's name, its packages' included."""
        bases = {self._project, folder, _top(folder), *(Path(place) for place in sys.path if place)}
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end]))
            yield Path(getattr(module, "__file__", None) or "")
            for base in filter(self._has, bases):
                path = base.joinpath(*parts[:end])
                yield from (path.with_suffix(".py"), path / "__init__.py")


def _top(folder: Path) -> Path:
    """Return the folder from which the package is imported that the folder belongs to."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _modules(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """Yield the names of the imported modules; _COMPUTED for one that is not written there."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = package[: len(package) - level + 1] if level else []
                base = ".".join([*parts, *filter(None, [module])])
                yield base
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _IMPORTING:
                first = node.args[0] if node.args else None
                text = first.value if isinstance(first, ast.Constant) else None
                yield text if isinstance(text, str) else _COMPUTED
            case ast.Assign(targets=[ast.Name(id="pytest_plugins")], value=value):
                texts = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str))
