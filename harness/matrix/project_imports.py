"""The files of a project that a test imports, directly or not, by their import statements."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
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
        self._is_file = cache(lambda text: has(path := Path(text)) and path.is_file())
        self._places = cache(self._places_of)
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
        open_ = [name for name in modules if name.endswith(".")]
        if _COMPUTED in modules or any(self._places(file.parent, _first(name)) for name in open_):
            around += [path for path in sources(self._project) if path.suffix == ".py"]
        imported = (self._files(name, file.parent) for name in modules - {_COMPUTED})
        paths = (*map(str, around), *chain.from_iterable(imported))
        return [Path(path) for path in paths if self._is_file(path)]

    def _files(self, name: str, folder: Path) -> Iterator[str]:
        """Yield each file of the project that the module's name can mean, its packages' too."""
        parts = name.split(".")
        places = self._places(folder, _first(name))
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end]))
            paths = [getattr(module, "__file__", None) or ""]
            for place in places:
                path = "/".join((place, *parts[:end]))
                paths += (f"{path}.py", f"{path}/__init__.py")
            yield from filter(self._is_file, paths)

    def _places_of(self, folder: Path, first: str) -> list[str]:
        """Return where in the project an import in that folder finds a name, if it does."""
        places = {self._project, folder, _top(folder), *map(Path, filter(None, sys.path))}
        return [
            str(place)
            for place in filter(self._has, places)
            if (place / first).is_dir() or (place / f"{first}.py").is_file()
        ]


def _first(name: str) -> str:
    return name.partition(".")[0]


def _top(folder: Path) -> Path:
    """Return the folder from which the package is imported that the folder belongs to."""
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _modules(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """Yield the names of the imported modules; _COMPUTED for one that is not written there.

    The name of a package ends with a dot if only the module in it is computed.
    """
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
                yield _named(node.args[0] if node.args else None)
            case ast.Assign(targets=[ast.Name(id="pytest_plugins")], value=value):
                texts = [each.value for each in ast.walk(value) if isinstance(each, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str))


def _named(argument: ast.expr | None) -> str:
    match argument:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if "." in text:
            return text[: text.rindex(".") + 1]
    return _COMPUTED
