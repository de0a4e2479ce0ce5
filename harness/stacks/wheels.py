"""Stacks made of a folder of wheels, as nightlies are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from harness.errors import BadInputError
from harness.stacks import constraints
from harness.stacks.environments import cache_folder
from harness.stacks.stack import TOGETHER, Stack, together

_DATE = re.compile(r"20\d{6}")


def stacks_of(folder: Path, base: Stack, component: str = "torch_xla") -> list[Stack]:
    """Return a stack for each wheel of ``component`` in the folder, in the order of versions.

    The packages that go with it (torch with torch_xla, jaxlib with jax) come from the folder too:
    the wheel of the same date or version; everything else is as in ``base``. Raises BadInputError
    if there is no wheel of the component, or the one that goes with it is missing.
    """
    wheels = _wheels(folder, base.python)
    own = wheels.get(canonicalize_name(component), {})
    if not own:
        raise BadInputError(
            f"{folder}: expected wheels of {component} for Python {base.python}, found those of "
            f"{', '.join(sorted(wheels)) or 'nothing'}"
        )
    groups = [group for group in together(base) if component in group]
    partners = [pin for group in groups for pin in group if pin != component]
    stacks = []
    for version, path in sorted(own.items()):
        pins = {component: str(path)}
        for partner in partners:
            theirs = wheels.get(canonicalize_name(partner), {})
            if theirs:
                pins[partner] = str(_match(folder, version, partner, theirs))
        swapped = base.swap(pins)
        stacks.append(replace(swapped, name=str(version), folder=folder))
    return stacks


def onto(stack: Stack, folder: Path) -> Stack:
    """Return the stack with the folder's wheels in place of their pins; other pins stay.

    The name gets ``+wheels``, unless the stack's file names a folder of wheels: so a history
    continues from one wheel to the next. Raises BadInputError for a folder without wheels for its
    Python, and for several of one package.
    """
    wheels = _wheels(folder, stack.python)
    if not wheels:
        raise BadInputError(f"{folder}: expected wheels for Python {stack.python}, found none")
    pins: dict[str, str | None] = {}
    spelled = {canonicalize_name(name): name for name in (*stack.pins, *sum(TOGETHER, ()))}
    for name, versions in wheels.items():
        if len(versions) > 1:
            several = ", ".join(map(str, sorted(versions)))
            raise BadInputError(f"{folder}: expected one wheel of {name}, found {several}")
        pins[spelled.get(canonicalize_name(name), name)] = str(next(iter(versions.values())))
    name = stack.name if stack.folder else f"{stack.name}+wheels"
    return replace(stack.swap(pins), name=name, folder=folder)


def given(stack: Stack, folder: str) -> Stack:
    """Return the stack with the folder's wheels, resolved anew; without a folder, unchanged.

    A wheel that was built again may have the same version but another checksum than the one that
    was resolved before.
    """
    if not folder:
        return stack
    own = onto(stack, Path(folder))
    constraints.resolve(own, constraints.path_of(own, cache_folder()))
    return own


def _wheels(folder: Path, python: str) -> dict[str, dict[Version, Path]]:
    if not folder.is_dir():
        raise BadInputError(f"{folder}: expected a folder of wheels")
    tag = "".join(python.split(".")[:2])
    wheels: dict[str, dict[Version, Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise BadInputError(f"{folder}: {error}") from error
        if any(t.interpreter in ("py3", f"cp{tag}") or t.abi == "abi3" for t in tags):
            wheels.setdefault(name, {})[version] = path
    return wheels


def _match(folder: Path, version: Version, partner: str, theirs: dict[Version, Path]) -> Path:
    date = _DATE.search(str(version))
    for other, path in theirs.items():
        other_date = _DATE.search(str(other))
        if (date and other_date and date[0] == other_date[0]) or other.base_version == str(version):
            return path
    raise BadInputError(f"{folder}: no wheel of {partner} goes with version {version}")


def named(stacks: Sequence[Stack], text: str) -> int:
    """Return the index of the stack of that version or date; raise BadInputError if unknown."""
    matches = [i for i, s in enumerate(stacks) if s.name == text or text in _DATE.findall(s.name)]
    if len(matches) != 1:
        raise BadInputError(f"{text!r}: expected one of {', '.join(s.name for s in stacks)}")
    return matches[0]
