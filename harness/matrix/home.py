"""The project under test: where its pytest is started, and what of it decides an answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path

from harness.errors import BadInputError
from harness.model.case_id import file_of

RESULTS = "results"  # folder of what can be reused, in the cache
_SOURCES = (".py", ".toml", ".ini", ".cfg", ".c", ".h", ".so")
_ENVIRONMENT = "pyvenv.cfg"  # marks a folder with somebody's packages
# Variables that frameworks, XLA and Python read, but for those of the run itself.
_VARIABLES = (
    *("XLA_", "JAX_", "PJRT_", "TPU_", "LIBTPU_", "TF_", "TORCH", "PYTORCH_", "PT_", "CUDA_"),
    *("NVIDIA_", "OMP_", "MKL_", "LD_", "PYTHON"),
)
_OF_THE_RUN = ("XLA_HARNESS_", "PYTHONPATH", "PYTEST_")
_BYTECODE = ("__pycache__",)
_PACKAGES = ("site-packages", "dist-packages", "node_modules", *_BYTECODE)
_CODE = (".py", ".so")  # which tests may import though git ignores it


def is_path(argument: str, folder: Path | None = None) -> bool:
    """Return whether pytest's argument is a file, a folder or a test's id, seen from the folder.

    The folder is the current one by default.
    """
    path = Path(file_of(argument))
    return (path if folder is None else folder / path).exists()


def paths_in(arguments: Sequence[str], folder: Path | None = None) -> list[str]:
    """Return the arguments that are paths; the value of an option, as in ``-k tests``, is none."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [each for before, each in pairs if _is_place(each, before, folder)]


def home_of(arguments: Sequence[str], here: Path) -> Path:
    """Return the folder in which pytest imports the tests that ``arguments`` name in ``here``.

    It is ``here`` within the tests' project. From elsewhere it is the project's root as pytest
    finds it (a configuration file, pyproject.toml or setup.py), or else that of its repository, or
    the folder that has the tests' folder. Raises BadInputError for a configuration file that
    can't be read.
    """
    top, here = _top(arguments, here), here.resolve()
    root = _configured(top)
    if root is None:
        root = here if top.is_relative_to(here) else _unconfigured(top)
    return here if here.is_relative_to(root) else root


def project_of(arguments: Sequence[str], here: Path) -> Path:
    """Return the root of the tests' project, whose sources decide what they say.

    Raises BadInputError for a configuration file that can't be read.
    """
    top = _top(arguments, here)
    return _configured(top) or _unconfigured(top)


def seen_from(home: Path, arguments: Sequence[str], here: Path) -> tuple[str, ...]:
    """Return the arguments with the paths in ``here`` absolute, for a pytest in ``home``."""
    if home == here.resolve():
        return tuple(arguments)
    return tuple(
        _absolute(argument, "" if index == 0 else arguments[index - 1], here)
        for index, argument in enumerate(arguments)
    )


def python_path(environment: Mapping[str, str]) -> list[str]:
    """Return the absolute folders that the caller's PYTHONPATH names."""
    texts = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path(text).absolute()) for text in texts if text]


def deciding_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can decide what a case does, in order."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLES) and not name.startswith(_OF_THE_RUN)
    }


def sources(folder: Path) -> Iterator[Path]:
    """Yield the source files of a project, in order: none of its hidden folders or environments."""
    paths = (path for path in walk(folder, _PACKAGES) if path.suffix in _SOURCES)
    return (path for path in paths if not _is_stack(path))


def data(project: Path) -> Iterator[Path]:
    """Yield the files of a project that are no sources, in order: none that git ignores."""
    paths = (path for path in sorted(files_of(project)) if path.suffix not in _SOURCES)
    return (path for path in paths if not _is_stack(path))


def files_of(place: Path) -> Collection[Path]:
    """Return the files that git tracks or does not ignore, and code; without git, all."""
    if not place.is_dir():
        return [place]
    command = ("git", "-C", str(place), "ls-files", "-z", "--cached", "--others")
    try:
        listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return list(walk(place))
    names = map(os.fsdecode, listed.stdout.split(b"\0"))
    own = {place / name for name in names if name and not name.endswith(".pyc")}
    return own | {file for file in walk(place) if file.name.endswith(_CODE)}


def walk(place: Path, without: Container[str] = _BYTECODE) -> Iterator[Path]:
    """Yield the files below a folder, in order: none of its hidden folders or environments."""
    for folder, names, files in os.walk(place):
        names[:] = sorted(
            name
            for name in names
            if not (name.startswith(".") or name in without)
            and not Path(folder, name, _ENVIRONMENT).exists()
        )
        yield from (Path(folder, file) for file in sorted(files))


def _is_stack(path: Path) -> bool:
    """Return whether the path is of a stack's file; a cell has the environment instead."""
    return path.suffix in (".toml", ".txt") and path.parent.name == "stacks"


def _top(arguments: Sequence[str], here: Path) -> Path:
    """Return the folder or file that has all the tests; ``here`` if no argument is a path."""
    paths = [here / file_of(text) for text in paths_in(arguments, here)]
    return Path(os.path.commonpath([path.resolve() for path in paths or [here]]))


def _is_place(argument: str, before: str, folder: Path | None) -> bool:
    return is_path(argument, folder) and ("/" in argument or not before.startswith("-"))


def _configured(top: Path) -> Path | None:
    """Return the root that pytest finds from its configuration, or from setup.py."""
    import pytest
    from _pytest.config.findpaths import locate_config

    try:
        root, *_ = locate_config(top, [top])
    except pytest.UsageError as error:
        raise BadInputError(str(error)) from error
    setup = (folder for folder in (top, *top.parents) if (folder / "setup.py").is_file())
    return root or next(setup, None)


def _unconfigured(top: Path) -> Path:
    base = top if top.is_dir() else top.parent
    for folder in (base, *base.parents):
        if (folder / ".git").exists():
            return folder
    if not (base / "__init__.py").exists():
        return base.parent
    while (base / "__init__.py").exists():
        base = base.parent
    return base


def _absolute(argument: str, before: str, here: Path) -> str:
    """Return the argument, made absolute if it is a path, also in ``--ignore=a/b``."""
    option, equal, value = argument.partition("=") if argument.startswith("--") else ("", "", "")
    if equal:
        is_place = "/" in value and is_path(value, here)
        return f"{option}={here.absolute() / value}" if is_place else argument
    return str(here.absolute() / argument) if _is_place(argument, before, here) else argument
