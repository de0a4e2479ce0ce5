"""An environment like the user's own, in which some packages have other versions."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.errors import BadInputError
from harness.stacks import uv
from harness.stacks.environments import Say, cache_folder

_COMPLETE = "complete"
_CUDA_PLUGIN = re.compile(r"jax-(cuda\d+)-plugin")


@dataclass(frozen=True)
class Installed:
    """The packages of an interpreter's environment."""

    versions: Mapping[str, str]  # package, in its canonical spelling, to version
    own: Mapping[str, str]  # those that come from a folder, a file or an address: requirement

    @property
    def editable(self) -> list[str]:
        """Return the addresses of the folders that are installed as editable."""
        return [line.removeprefix("-e ") for line in self.own.values() if line.startswith("-e ")]

    @classmethod
    def of(cls, python: Path) -> Installed:
        """Ask uv. Raises BadInputError if that is no interpreter."""
        where = ("--python", str(python))
        doing = f"--python {python}"
        listed = json.loads(uv.run(doing, "pip", "list", "--format", "json", *where))
        names = {canonicalize_name(entry["name"]): entry for entry in listed}
        own: dict[str, str] = {
            name: f"-e {Path(folder).as_uri()}"
            for name, entry in names.items()
            if (folder := entry.get("editable_project_location"))
        }
        for line in uv.run(doing, "pip", "freeze", *where).splitlines():
            name, at, address = line.partition(" @ ")
            if at and _exists(address):
                own[canonicalize_name(name)] = line
        versions: dict[str, str] = {name: entry["version"] for name, entry in names.items()}
        return cls(versions, own)


@dataclass(frozen=True)
class Twin:
    """The environment with the candidate's versions."""

    folder: Path
    python: Path
    moved: Mapping[str, tuple[str, str]]  # package to its version before and now; "" for none

    def modules_of(self, package: str) -> set[str]:
        """Return the top-level modules of an installed package."""
        names = {package.replace("-", "_")}  # all that is known of an editable one
        sites = [str(path) for path in self.folder.glob("lib/python*/site-packages")]
        for owner in distributions(name=package, path=sites):
            for file in owner.files or ():
                name, _, suffix = file.parts[0].partition(".")
                if not suffix if len(file.parts) > 1 else "so" in suffix or suffix == "py":
                    names.add(name)
        return {name for name in names if name.isidentifier()}


def requirements(texts: Sequence[str]) -> dict[str, str]:
    """Return the requirements by package. Raises BadInputError for what is none."""
    named: dict[str, str] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise BadInputError(
                f"{text!r}: expected a requirement, such as jax==0.12.0.1: {reason}"
            ) from error
        named[canonicalize_name(requirement.name)] = text
    return named


def twin(base: Path, wanted: Mapping[str, str], installed: Installed, say: Say) -> Twin:
    """Return the base's twin with the wanted versions, which is made if it is not there yet.

    Raises BadInputError if a version does not exist or does not fit the other packages.
    """
    for name in wanted:
        if name not in installed.versions:
            raise BadInputError(
                f"{name} is not among the packages of {base}: the tests can't move to another "
                "version of it; --python names the interpreter that runs your tests"
            )
    say(f"resolving {' '.join(wanted.values())} beside {len(installed.versions)} packages")
    text = _resolved(base, wanted, installed)
    _check_pairs(text, wanted)
    digest = hashlib.sha256(f"{base.resolve()}\n{text}".encode()).hexdigest()[:12]
    folder = cache_folder() / "survive" / digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    own = [line for name, line in installed.own.items() if name not in wanted]
    own += [each for each in wanted.values() if each.partition("@")[2].strip().startswith("file:")]
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / _COMPLETE).exists():
            _make(base, folder, text, say)
        elif own:  # their sources may have changed
            words = [word for line in own for word in _words(line)]
            options = ("--quiet", "--no-deps", "--reinstall", "--python", str(python))
            uv.run(f"installing {' '.join(own)}", "pip", "install", *options, *words)
    was, now = installed.versions, Installed.of(python).versions
    moved = {
        name: (was.get(name, ""), now.get(name, ""))
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    }
    if unmoved := [name for name in wanted if name not in moved]:
        raise BadInputError(f"{unmoved[0]} {was[unmoved[0]]} is what {base} has: nothing moves")
    return Twin(folder, python, moved)


def _resolved(base: Path, wanted: Mapping[str, str], installed: Installed) -> str:
    """Return the pins of the twin. Only what must move does, as far as uv can keep it.

    What the candidate needs may become older. Nothing else may: a resolver would avoid a package's
    upper bound by an old release that has none yet.
    """
    free = _versions(_compiled(base, wanted, wanted.values(), ()))
    lines, pins = list(wanted.values()), []
    # They are released together: pip installs the newest jaxlib that jax accepts.
    followers = {"jaxlib"} if "jax" in wanted else set()
    # torch_xla requires no torch, and only loads beside the one that it was built for.
    if "torch" not in wanted and (version := "torch-xla" in wanted and free.get("torch-xla")):
        followers.add("torch")
        lines.append(f"torch=={_minor(version)}.*")
    for name, version in installed.versions.items():
        if name in wanted:
            continue
        if name in installed.own and name not in followers:
            lines.append(installed.own[name])
        elif name in free:
            lines.append(name)
        else:  # a local version, as 2.9.0+cpu, has no successor
            lines.append(f"{name}{'==' if '+' in version else '>='}{version}")
        if name not in followers:
            pins.append(f"{name}=={version}")
    return _compiled(base, wanted, lines, pins)


def _check_pairs(pins: str, wanted: Iterable[str]) -> None:
    """Raise BadInputError if one of two packages would not work, for the other's version.

    jaxlib would only warn of a CUDA plugin (jaxlib/plugin_support.py) and go without its kernels,
    which is not what the tests will meet, and torch_xla can't be imported beside another torch.
    """
    versions = _versions(pins)
    for match in filter(None, map(_CUDA_PLUGIN.fullmatch, versions)):
        pair = [versions[name] for name in ("jaxlib", match[0]) if name in versions]
        if len({Version(version).release for version in pair}) > 1:
            raise BadInputError(
                f"jaxlib {pair[0]} does not use {match[0]} {pair[1]}: "
                f"jax[{match[1]}]==VERSION moves both"
            )
    pair = [versions[name] for name in ("torch", "torch-xla") if name in versions]
    if len(set(map(_minor, pair))) > 1 and {"torch", "torch-xla"}.intersection(wanted):
        raise BadInputError(
            f"torch_xla {pair[1]} can't be loaded with torch {pair[0]}: "
            "torch_xla==VERSION moves both"
        )


def _versions(pins: str) -> dict[str, str]:
    """Return the version of each pinned package."""
    pairs = (line.partition("==") for line in pins.splitlines())
    return {canonicalize_name(name): version for name, same, version in pairs if same}


def _minor(version: str) -> str:
    return "{}.{}".format(*Version(version).release)


def _compiled(
    base: Path, wanted: Mapping[str, str], lines: Iterable[str], pins: Iterable[str]
) -> str:
    with tempfile.TemporaryDirectory(prefix="survive-") as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.write_text("\n".join(lines), encoding="utf-8")
        target.write_text("\n".join(pins), encoding="utf-8")  # which uv keeps where it can
        uv.run(
            f"{' '.join(wanted.values())} beside the packages of {base}",
            *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", str(base)),
            *("--output-file", str(target), str(source)),
        )
        return target.read_text(encoding="utf-8")


def _make(base: Path, folder: Path, text: str, say: Say) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    say("installing the candidate")
    doing = "the candidate's environment"
    uv.make_environment(doing, str(base), folder)
    pins = folder / "requirements.txt"
    pins.write_text(text, encoding="utf-8")
    uv.run(doing, "pip", "sync", "--python", str(folder / "bin" / "python"), str(pins), show=True)
    (folder / _COMPLETE).touch()


def _words(line: str) -> list[str]:
    """Return a line of a requirements file as words of a command."""
    return line.split(" ", 1) if line.startswith("-e ") else [line]


def _exists(address: str) -> bool:
    """Return whether the address can be installed from; that of a conda package can not."""
    parts = urlsplit(address)
    return parts.scheme != "file" or Path(unquote(parts.path)).exists()
