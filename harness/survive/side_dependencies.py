"""What a side's result depends on: digests of what its tests can read, by name."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harness.matrix.home import files_of, paths_in, project_of, walk
from harness.model.case_id import file_of
from harness.reuse.dependencies import harness_digest, processor_features
from harness.reuse.digests import SITE, Digests
from harness.survive.recording_plugin import ACCELERATORS

# The folder of the tests comes first; Python's own modules are known by its version.
_PATH = """
import json, sys, sysconfig
own = sysconfig.get_path("stdlib")
path = [each for each in sys.path[1:] if not each.endswith((".zip", "/lib-dynload"))]
print(json.dumps([sys.version, [each for each in path if each != own]]))
"""
_SITES = ("site-packages", "dist-packages")
_ROOT = (".git", "pyproject.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "setup.py")
# Installers write them with the time, or with the digests of bytecode.
_OF_INSTALLER = re.compile(r".*\.dist-info/(RECORD|uv_cache\.json)")
# What a shell, a session or a runner sets differently each time.
_OF_SESSION = re.compile(
    r"_|(OLD)?PWD|SHLVL|COLUMNS|LINES|(COLOR)?TERM(_.*)?|XLA_HARNESS_CACHE"
    r"|(SSH|TMUX|VSCODE|DBUS|XDG_SESSION|GITHUB|RUNNER)_.*"
)


def dependencies(
    python: Path, arguments: Sequence[str], editable: Collection[str], written: Collection[Path]
) -> dict[str, str]:
    """Return digests by name; none if the tests run outside their project, which nothing bounds.

    ``editable`` are the addresses of installed folders, ``written`` what the command itself writes.
    """
    here = Path.cwd().resolve()
    project = project_of(arguments, here)
    if not any((project / name).exists() for name in _ROOT):  # a guess from the tests' place
        project = here
    tests = [(here / file_of(each)).resolve() for each in paths_in(arguments, here)]
    if not all(place.is_relative_to(project) for place in (here, *tests)):
        return {}
    output = subprocess.check_output([python, "-c", _PATH])
    version, path = json.loads(output)
    sites = [Path(each) for each in path if Path(each).name in _SITES]
    names = [name for site in sites for name in _installed(site)]
    places = {Path(unquote(urlsplit(address).path)) for address in editable}
    places |= {Path(each) for each in path} - {*sites}
    for place in (project, *(each for each in places if not each.is_relative_to(project))):
        names += [str(file) for file in files_of(place) if not _is_in(file, written)]
    digests = Digests(project, sites)
    variables = ((k, v) for k, v in os.environ.items() if not _OF_SESSION.fullmatch(k))
    return {
        "Python": version,
        "the processor": f"{platform.machine()} {os.cpu_count()} {processor_features()}",
        "the devices": " ".join(_devices()),
        "the harness": harness_digest(),
        **{name: digests.of(name) for name in names},
        **{f"the variable {k}": _digest(v) for k, v in variables},
    }


def _installed(site: Path) -> Iterator[str]:
    """Yield the names of a folder's installed files."""
    for file in walk(site):
        name = str(file.relative_to(site))
        if not _OF_INSTALLER.fullmatch(name):
            yield f"{SITE}{name}"


def _is_in(file: Path, places: Collection[Path]) -> bool:
    return any(file.is_relative_to(place) for place in places)


def _devices() -> Iterator[str]:
    for start in ACCELERATORS:
        yield from sorted(map(str, Path("/").glob(f"{start[1:]}*")))


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()
