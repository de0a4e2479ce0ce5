"""uv, which resolves and installs, and what its errors mean."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.errors import BadInputError
from harness.isolation import libc

_MEANINGS = (
    (
        r"No interpreter found|Failed to inspect Python|Failed to download\s+\S*cpython-",
        "that Python is not here, and uv can't fetch it",
    ),
    (
        r"error sending request|dns error|Could not connect|tcp connect|network connectivity",
        "the package index can't be reached; what was installed before still works",
    ),
    (r"No space left on device", "the disk is full; `xla-harness stacks remove` frees some"),
    (r"no wheels? with a matching|no wheels are available|not compatible", "wrong wheel"),
    (r"No solution found|unsatisfiable", "the pins don't fit together"),
    (r"hash|Hash mismatch", "a wheel is not the one that was resolved"),
)


@cache
def executable() -> str:
    """Return the uv to call: the one that runs this command, PATH's, or the installed package's.

    In this order, since each version of uv has a cache of its own, of many GB.
    """
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is not None:
        return uv
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        raise BadInputError("uv is missing: pip install uv") from None


def run(doing: str, *arguments: str, show: bool = False, errors: bool = False) -> str:
    """Run uv and return its output, or what it said besides (``errors``).

    ``show`` passes the latter on to a terminal: it is uv's progress.

    Raises BadInputError with ``doing``, what the error means and uv's own words.
    """
    process = subprocess.Popen(
        [executable(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if show and os.isatty(2) else subprocess.PIPE,
        text=True,
        # A create that is killed must not leave a uv behind that goes on filling the folder.
        preexec_fn=libc.DieWithParent(),  # noqa: PLW1509 - two system calls
        env=_environment(),
    )
    try:
        output, errors_text = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise BadInputError(_explained(doing, errors_text or "uv's words are above"))
    return (errors_text or "") if errors else output


def python(version: str) -> str:
    """Return the path of an interpreter of that version: this one, uv's own, or one on PATH.

    Raises BadInputError when there is none.
    """
    if is_running(version):
        return sys.executable
    return run("python", "python", "find", "--no-project", "--system", version).strip()


def make_environment(doing: str, version: str, folder: Path) -> None:
    """Make a folder with an interpreter and no packages, which may be moved.

    uv fetches a Python that is not here if it may. Raises BadInputError, with what can be done
    about a Python that is missing.
    """
    try:
        own = sys.executable if is_running(version) else version
        run(doing, "venv", "--quiet", "--relocatable", "--python", own, str(folder))
    except BadInputError as error:
        try:
            python(version)
        except BadInputError:
            raise BadInputError(f"{error}\n{remedy(version)}") from None
        raise


def is_running(version: str) -> bool:
    """Return whether this process's interpreter is of that version, CPython with a GIL."""
    usual = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    return usual and f"{platform.python_version()}.".startswith(f"{version}.")


def remedy(version: str) -> str:
    """Return what to do about a Python that uv does not find.

    uv reads PATH, where pyenv puts only the versions that were chosen with `pyenv global`.
    """
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    known = [path for text in (version, f"{version}.*") for path in root.glob(f"{text}/bin/python")]
    if not known:
        return f"install Python {version} and put it on PATH, or: uv python install {version}"
    newest = max(known, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parts[-3])])
    folder = shlex.quote(str(newest.parent))
    return f"pyenv has it, where uv does not look: export PATH={folder}:$PATH"


def _environment() -> dict[str, str]:
    """Return this process's variables, except for those of its own environment.

    Modules are compiled when they are installed unless the user's UV_COMPILE_BYTECODE says no.
    """
    own = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return {"UV_COMPILE_BYTECODE": "1", **own}


def _explained(doing: str, words: str) -> str:
    meaning = next((text for pattern, text in _MEANINGS if re.search(pattern, words)), "uv failed")
    return f"{doing}: {meaning}:\n{_indented(words)}"


def _indented(words: str) -> str:
    lines: Sequence[str] = [line.rstrip() for line in words.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-20:])
