"""The stacks of a project, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.errors import BadInputError, nearest
from harness.model.versions import ABSENT, COMPONENTS, LEADING
from harness.shipped import shipped
from harness.stacks import constraints
from harness.stacks.stack import TOGETHER, Stack, together

_SWAP = re.compile(r"\+([A-Za-z][\w.-]*)=([^+]+(?:\+(?![A-Za-z][\w.-]*=)[^+]+)*)")


class Catalogue:
    """The ``*.toml`` of a project's folder, and behind them those that came with xla-harness.

    A stack of the project takes the place of one of the same name that came along; those that
    came along extend only each other.

    Attributes:
        stacks: those of the project, or where it has no folder those that came along; by
            framework, its version and torch's.
    """

    def __init__(self, folder: Path | None) -> None:
        """Read the project's; None for a project that has no folder of stacks.

        Raises:
            BadInputError: there is no such folder, or a file of it can't be used.
        """
        if folder is not None and not folder.is_dir():
            raise BadInputError(
                f"{folder}: expected a folder of stacks, one TOML file each, "
                "as a clone of the project has"
            )
        came = shipped("stacks")
        if came is not None and folder is not None and came.samefile(folder):
            came = None  # a clone's own folder
        self._shipped = None if came is None else _Folder(came, is_shipped=True)
        self._own = None if folder is None else _Folder(folder, self._shipped)
        first = self._own or self._shipped
        self.stacks = [] if first is None else first.stacks

    @property
    def every(self) -> list[Stack]:
        """The project's stacks, and those that came along under other names."""
        stacks: dict[str, Stack] = {}
        for folder in (self._shipped, self._own):
            stacks |= {} if folder is None else {stack.name: stack for stack in folder.stacks}
        return sorted(stacks.values(), key=lambda stack: stack.order)

    def find(self, text: str) -> Stack:
        """Return the stack of that name or file, or either with swapped pins: ``2.9.0+jax=0.8.0``.

        Raises BadInputError with the nearest names for an unknown one.
        """
        name = re.split(r"\+(?=[A-Za-z][\w.-]*=)", text, maxsplit=1)[0]
        stack = self._named(name)
        swaps = dict(_SWAP.findall(text[len(name) :]))
        if not swaps:
            return stack
        python, cuda = swaps.pop("python", None), swaps.pop("cuda", None)
        cuda = "" if cuda == "none" else cuda
        swapped = stack.swap(_swapped(stack, swaps), python, cuda)
        swapped.check()  # a bad pin is said now
        return swapped

    def between(self, name: str, other: str) -> list[Stack]:
        """Return the stacks from one to the other, ends included, in the order of their versions.

        Stacks that extend another one, and those of a framework that one of the ends does not have,
        are only included as ends. If the ends differ in torch alone, which torch_tpu allows, so do
        the stacks between them. Between two stacks of JAX are all other JAX stacks of the same CUDA
        as the later one.
        """
        low, high = sorted([self.find(name), self.find(other)], key=lambda s: s.order)
        if low.framework == high.framework == "jax":
            known = [s for s in self.every if s.framework == "jax" and s.cuda == high.cuda]
            return [low, *(s for s in known if low.version < s.version < high.version), high]
        if low.framework == high.framework == "torch_tpu" and _but_torch(low) == _but_torch(high):
            known = [stack for stack in self.every if _but_torch(stack) == _but_torch(low)]
            return [low, *(s for s in known if low.order[:3] < s.order[:3] < high.order[:3]), high]
        alone = [stack for stack in self.every if stack.extends is None]
        inner = [stack for stack in alone if low.version < stack.version < high.version]
        same = [stack for stack in inner if {stack.framework} == {low.framework, high.framework}]
        return [low, *same, high]

    def chosen(self, names: Sequence[str]) -> list[Stack]:
        """Return the stacks of these names; ``all`` alone means the releases."""
        return self.releases if [*names] == ["all"] else [self.find(name) for name in names]

    @property
    def releases(self) -> list[Stack]:
        """The stacks that extend no other one: neither variants nor templates."""
        return [stack for stack in self.stacks if stack.extends is None]

    def newest_for(self, component: str) -> Stack:
        """Return the newest stack of that framework, or of torch_xla if the component is none."""
        leader = component if component in LEADING else LEADING[0]
        own = [stack for stack in self.every if stack.framework == leader]
        return max(own or self.every, key=lambda s: (*s.order[:3], s.extends is None, s.name))

    def _named(self, name: str, below: tuple[str, ...] = ()) -> Stack:
        for folder in (self._own, self._shipped):
            if folder is not None and name in folder.paths:
                return folder.named(name)
        path = Path(name)
        if path.suffix != ".toml":
            raise BadInputError(f"stack {name!r}: {_places(name, self._own, self._shipped)}")

        def base_of(base: str) -> Stack | None:
            if base in (*below, name):
                raise BadInputError(f"{path}: key 'extends': {base!r} extends this one")
            return self._named(base, (*below, name)) if base else None

        from harness.stacks.stack_file import read

        return read(path, base_of)


class _Folder:
    """The stacks of one folder, which may extend those of another one, its ``base``."""

    def __init__(
        self, folder: Path, base: _Folder | None = None, *, is_shipped: bool = False
    ) -> None:
        self.folder = folder
        self.paths = {path.stem: path for path in sorted(folder.glob("*.toml"))}
        self._base, self._is_shipped = base, is_shipped
        self._read: dict[str, Stack] = {}

    @cached_property
    def stacks(self) -> list[Stack]:
        """Return the folder's stacks, sorted by ``Stack.order``. Raises BadInputError."""
        return sorted(map(self.named, self.paths), key=lambda stack: stack.order)

    def named(self, name: str, below: tuple[str, ...] = ()) -> Stack:
        """Return the stack of that name, which the folder has. Raises BadInputError."""
        if name in self._read:
            return self._read[name]
        path = self.paths[name]

        def base_of(base: str) -> Stack:
            if base in (*below, name):
                raise BadInputError(f"{path}: key 'extends': {base!r} extends this one")
            if base in self.paths:
                return self.named(base, (*below, name))
            if self._base is not None and base in self._base.paths:
                return self._base.named(base)
            near = _places(base, self, self._base)
            raise BadInputError(f"{path}: key 'extends': {base!r}: {near}")

        from harness.stacks.stack_file import read

        self._read[name] = read(path, base_of, shipped=self._is_shipped)
        return self._read[name]


def _places(name: str, *folders: _Folder | None) -> str:
    """Say what a name that none of the folders has may stand for, and which folders they are."""
    present = [folder for folder in folders if folder is not None]
    known = dict.fromkeys(known for folder in present for known in folder.paths)
    places = " and ".join(str(folder.folder) for folder in present)
    return f"{nearest(name, known)} ({places or 'there are no stacks'})"


def known_versions(folder: Path | None) -> list[dict[str, str]]:
    """Component to version of every stack of a project with this folder; [] without one."""
    if folder is None:
        return []
    return [versions_of(stack) for stack in Catalogue(folder).every]


def versions_of(stack: Stack) -> dict[str, str]:
    """Component to version, as resolved where there is a constraint file, else as pinned."""
    path = stack.where.with_suffix(".txt") if stack.where else None
    resolved = constraints.read(path) if path and path.exists() else {}
    versions = {name: resolved.get(canonicalize_name(name), "") for name in COMPONENTS}
    pinned = {name: stack.packages.get(name, ABSENT) for name in COMPONENTS}
    return {"python": stack.python} | {name: versions[name] or pinned[name] for name in COMPONENTS}


def _but_torch(stack: Stack) -> tuple[str, dict[str, str]]:
    return stack.python, {name: pin for name, pin in stack.pins.items() if name != "torch"}


def _swapped(stack: Stack, swaps: Mapping[str, str]) -> dict[str, str | None]:
    """Return the pins to set, including those that go together."""
    known = {canonicalize_name(pin): pin for pin in (*stack.packages, *sum(TOGETHER, ()))}
    pins: dict[str, str | None] = {}
    groups = together(stack)
    for name, text in swaps.items():
        pin = known.get(canonicalize_name(name))
        if pin is None:
            raise BadInputError(f"stack {stack.name}: pin {name!r}: {nearest(name, known)}")
        value = None if text == "none" else text
        alone = text.endswith(".whl")  # another package needs a wheel of its own
        group = next((group for group in groups if pin in group and not alone), (pin,))
        pins |= {member: value for member in group if member not in swaps}
        pins[pin] = value
    return pins
