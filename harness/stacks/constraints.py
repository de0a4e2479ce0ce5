"""A stack's constraint file: every package with its version and the checksums of its files."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.errors import BadInputError
from harness.files import read_text
from harness.stacks import own_wheels, uv
from harness.stacks.stack import Stack

# What only the commands need, which never run in a stack's environment.
_COMMANDS_ONLY = {"duckdb", "filelock", "libcst", "pyarrow", "shtab", "tomlkit", "uv"}
# What the suites of this project draw inputs with, and the dtypes that NumPy lacks.
_SUITES = ("hypothesis", "ml_dtypes")


def path_of(stack: Stack, cache: Path) -> Path:
    """Return its place: next to the stack's own file, or in the cache for one that has no file.

    For a stack that came along without one, such as nightly, it is in the cache too: nothing is
    written where xla-harness is installed.
    """
    if stack.where is not None:
        path = stack.where.with_suffix(".txt")
        if not stack.shipped or path.exists():
            return path
    return cache / "constraints" / f"{stack.slug}.txt"


def place_of(stack: Stack, cache: Path) -> Path:
    """Return the place of the file that holds for the stack's wheels as they are now.

    It is in the cache if one was built again since they were resolved, or else as ``path_of``.
    """
    path = path_of(stack, cache)
    text = read_text(path) if path.exists() else ""
    if not (digests := own_wheels.changed(stack, text)):
        return path
    content = "\n".join([text, *(f"{name} {digest}" for name, digest in sorted(digests.items()))])
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return cache / "constraints" / f"{stack.slug}-{digest}.txt"


def resolved(stack: Stack, cache: Path, needs: Sequence[str] = ()) -> Path:
    """Return the stack's constraint file, resolving it if there is none.

    Raises BadInputError if it can't be resolved, does not match the pins any more, or lacks
    something of ``needs``: requirements of whatever else is to run in the stack.
    """
    path = path_of(stack, cache)
    if not path.exists():
        return resolve(stack, path)
    versions = read(path)
    # The harness's needs may have changed since the file was made, as well as the stack's pins.
    for text in [*stack.requirements, *needs]:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        version = versions.get(canonicalize_name(wanted.name))
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            if stack.where is None:
                return resolve(stack, path)
            source = stack.where.name if text in stack.requirements else "xla-harness"
            raise BadInputError(
                f"{path}: has {wanted.name} {version or 'not at all'}, {source} pins "
                f"{text}: run `xla-harness stacks lock {stack.name}`"
            )
    place = place_of(stack, cache)
    if place.exists():
        return place
    text = read_text(path)
    return resolve(stack, place, own_wheels.without(text, own_wheels.changed(stack, text)))


def resolve(stack: Stack, path: Path, known: str = "") -> Path:
    """Write the file anew, whole or not at all; raises BadInputError naming what conflicts.

    What the text ``known`` of such a file has is kept as far as it can be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lock-") as folder:
        wanted, new = Path(folder) / "in", Path(folder) / "out"
        new.write_text(known, encoding="utf-8")
        wanted.write_text(
            "\n".join([*stack.requirements, *harness_needs()]) + "\n", encoding="utf-8"
        )
        # In a folder of its own: a project's settings for uv are not this stack's.
        uv.run(
            f"stack {stack.name}: {' '.join(stack.requirements)}",
            *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"),
            *("--python-version", stack.python, "--output-file", str(new), str(wanted)),
            *(("--python", sys.executable) if uv.is_running(stack.python) else ()),
            *sources(stack),
        )
        text = new.read_text(encoding="utf-8")
        if "://" in text:
            raise BadInputError(f"stack {stack.name}: expected no address in its constraints")
        new.write_text(f"# xla-harness stacks lock {stack.name}\n{text}", encoding="utf-8")
        os.replace(new, path)  # noqa: PTH105 - beside its target
    return path


def sources(stack: Stack) -> list[str]:
    """Return the options of uv that name the sources of wheels."""
    options = [text for folder in stack.folders for text in ("--find-links", str(folder))]
    if stack.index is False:
        options.append("--no-index")
    elif isinstance(stack.index, str):
        options += ["--index", stack.index, "--index-strategy", "unsafe-best-match"]
    if any(Version(v).is_prerelease for v in _exact(stack)):
        options += ["--prerelease", "allow"]
    return options


def read(path: Path) -> dict[str, str]:
    """Package, in its canonical spelling, to version."""
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", read_text(path), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pins}


def _exact(stack: Stack) -> list[str]:
    texts = (text.partition("==") for text in stack.requirements)
    return [version for _, equal, version in texts if equal and "*" not in version]


def harness_needs() -> list[str]:
    """Return what the plugin and the suites need besides the stack."""
    try:
        wanted = map(Requirement, requires("xla-harness") or [])
    except PackageNotFoundError:
        raise BadInputError("xla-harness is not installed: pip install it first") from None
    return sorted(
        [str(r) for r in wanted if r.name not in _COMMANDS_ONLY and "extra" not in str(r.marker)]
    ) + list(_SUITES)
