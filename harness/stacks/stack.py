"""A stack: what is pinned, and where its wheels come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.errors import BadInputError, nearest
from harness.model.versions import LEADING, leading
from harness.platforms.gpu import packages

# What is swapped together, because it only fits together: torch_xla is built for one torch, and
# jax and jaxlib are released as a pair.
TOGETHER = (("torch", "torch_xla"), ("jax", "jaxlib"), ("libtpu",))
PYTHON = re.compile(r"3\.\d+(\.\d+)?")
_PYTHON_OF_TORCH_TPU = Version("3.12")
DISK = 8  # GB, where a stack's file says nothing


@dataclass(frozen=True)
class Stack:
    """Named set of pins. A pin is a version, a specifier such as ``<2``, or the path of a wheel."""

    name: str
    python: str  # 3.11 or 3.11.7
    pins: Mapping[str, str]
    cuda: str = ""  # CUDA's version, 12 or 13, for which the plugin of the pinned jaxlib is added
    note: str = ""
    folder: Path | None = None  # wheels besides those of the index
    index: bool | str = True  # False: only the folder; a text: this index instead of uv's own
    disk: float = DISK  # GB that the first environment of it takes
    where: Path | None = field(default=None, compare=False)
    extends: str | None = field(default=None, compare=False)  # the name of another stack
    shipped: bool = field(default=False, compare=False)  # its file came with xla-harness

    @property
    def slug(self) -> str:
        """Name for files, without the characters that shells and artifact stores reject."""
        return re.sub(r"[^\w.+=-]+", "_", self.name)

    @property
    def packages(self) -> Mapping[str, str]:
        """Return the pins, and those of the CUDA plugin."""
        jaxlib = self.pins.get("jaxlib", "")
        if self.cuda and not jaxlib:
            raise BadInputError(
                f"{self.where or f'stack {self.name}'}: key 'pins.jaxlib' is missing: expected a "
                f"version, which key 'cuda' needs"
            )
        return dict.fromkeys(packages.plugin(self.cuda), _version_in(jaxlib)) | dict(self.pins)

    @property
    def requirements(self) -> list[str]:
        """Return the packages as PEP 508 requirements; for a wheel, its version."""
        return [_requirement(self, name, pin) for name, pin in self.packages.items()]

    def check(self) -> None:
        """Raise BadInputError for pins that no package index could ever fulfil."""
        _ = self.requirements
        versions = {name.replace("-", "_"): _version_in(pin) for name, pin in self.packages.items()}
        exact = {name: text for name, text in versions.items() if text[0].isdigit()}
        if unfit := packages.unfit(exact):
            raise BadInputError(f"{self.where or f'stack {self.name}'}: {unfit}")
        if "torch_tpu" not in self.pins:
            return
        where = self.where or f"stack {self.name}"
        if "libtpu" not in self.pins:
            raise BadInputError(
                f"{where}: key 'pins.libtpu' is missing: expected a version, which torch_tpu needs"
            )
        if Version(self.python) < _PYTHON_OF_TORCH_TPU:
            raise BadInputError(
                f"{where}: key 'python': {self.python!r}: expected {_PYTHON_OF_TORCH_TPU} or "
                "later, which torch_tpu needs"
            )

    def contradiction(self, versions: Mapping[str, str]) -> str:
        """Describe the first of a run's ``versions`` that contradicts a pin; "" if none does."""
        for pin in (f"python=={self.python}.*", *self.requirements):
            pinned = Requirement(pin)
            version = versions.get(pinned.name, "")
            if version and not _fits(version, pinned):
                return f"{pinned.name}: expected {pinned.specifier}, found {version[:50]!r}"
        return ""

    @property
    def folders(self) -> list[Path]:
        """Folders in which uv looks for wheels, in addition to the index."""
        wheels = [Path(pin).parent for pin in self.pins.values() if pin.endswith(".whl")]
        return sorted({*wheels, *([self.folder] if self.folder else [])})

    @property
    def version(self) -> Version:
        """Version of the framework, else the one in the stack's name, else 0."""
        return self._version_of(self.framework) or _parsed(self.name) or Version("0")

    @property
    def order(self) -> tuple[int, Version, Version, str]:
        """Sort key of the stack: torch_xla first, then torch_tpu, then jax alone.

        Stacks of the same version are sorted by torch, as torch_tpu supports several of them.
        """
        place = LEADING.index(self.framework) if self.framework else 0
        return place, self.version, self._version_of("torch") or Version("0"), self.name

    @property
    def framework(self) -> str:
        """The framework that it is of: torch_xla, torch_tpu, or jax without either; "" for none."""
        return leading(self.pins)

    def _version_of(self, name: str) -> Version | None:
        return _parsed(self.pins.get(name, ""))

    def swap(
        self, pins: Mapping[str, str | None], python: str | None = None, cuda: str | None = None
    ) -> Stack:
        """Return the same stack with other pins and a name that says so; None removes a pin.

        Raises BadInputError for a Python that is no version, and for an unknown CUDA.
        """
        if cuda and cuda not in packages.CUDAS:
            raise BadInputError(
                f"stack {self.name}: cuda={cuda!r}: {nearest(cuda, [*packages.CUDAS, 'none'])}"
            )
        if python is not None and not PYTHON.fullmatch(python):
            raise BadInputError(
                f"stack {self.name}: python={python!r}: expected a version, as 3.11"
            )
        merged = {**self.pins, **pins}
        changed = {k: v for k, v in pins.items() if self.pins.get(k) != v}
        # jaxlib goes with jax and torch with torch_xla: naming one says both.
        shown = [n for n in changed if n == _leader(n) or changed.get(_leader(n)) != changed[n]]
        texts = [f"+{name}={_short(changed[name])}" for name in shown]
        if python and python != self.python:
            texts.append(f"+python={python}")
        if cuda is not None and cuda != self.cuda:
            texts.append(f"+cuda={cuda or 'none'}")
        return replace(
            self,
            cuda=self.cuda if cuda is None else cuda,
            name="".join([self.name, *texts]),
            python=python or self.python,
            pins={name: pin for name, pin in merged.items() if pin is not None},
            note=f"{self.name} with {', '.join(text[1:] for text in texts)}",
            where=None,
        )


def together(*stacks: Stack) -> tuple[tuple[str, ...], ...]:
    """Return the pins that are swapped together; torch_tpu works with more than one torch."""
    pinned = {name for stack in stacks for name in stack.pins}
    if "torch_tpu" in pinned and "torch_xla" not in pinned:
        return tuple(tuple(pin for pin in group if pin != "torch_xla") for group in TOGETHER)
    return TOGETHER


def _parsed(pin: str) -> Version | None:
    try:
        return Version(_version_in(pin).lstrip("<>=!~ ").partition(",")[0])
    except InvalidVersion:
        return None


def _fits(version: str, pinned: Requirement) -> bool:
    try:
        return pinned.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _leader(name: str) -> str:
    return {"torch": "torch_xla", "jaxlib": "jax"}.get(name, name)


def _short(pin: str | None) -> str:
    return "none" if pin is None else _version_in(pin)


def _version_in(pin: str) -> str:
    if pin.endswith(".whl"):
        try:
            return str(parse_wheel_filename(Path(pin).name)[1])
        except InvalidWheelFilename:  # which `requirements` refuses
            return Path(pin).name
    return pin.removeprefix("==")


def _requirement(stack: Stack, name: str, pin: str) -> str:
    if pin.endswith(".whl"):
        return f"{name}=={_wheel_version(stack, name, Path(pin))}"
    text = pin if pin[0] in "<>=!~" else f"=={pin}"
    try:
        return str(Requirement(f"{name}{text}"))
    except InvalidRequirement:
        raise BadInputError(
            f"{stack.where or stack.name}: key 'pins.{name}': {pin!r}: expected a version, a "
            "specifier as '<2', or the path of a wheel"
        ) from None


def _wheel_version(stack: Stack, name: str, wheel: Path) -> Version:
    where = f"{stack.where or stack.name}: key 'pins.{name}'"
    try:
        distribution, version, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise BadInputError(f"{where}: {error}") from error
    if not wheel.is_file():
        raise BadInputError(f"{where}: {wheel} is missing: expected a wheel")
    if distribution != canonicalize_name(name):
        raise BadInputError(f"{where}: {wheel.name} is a wheel of {distribution}: expected {name}")
    ours = {"py3", "py" + _compact(stack.python), "cp" + _compact(stack.python)}
    if not any(tag.interpreter in ours or tag.abi == "abi3" for tag in tags):
        theirs = ", ".join(sorted({tag.interpreter for tag in tags}))
        raise BadInputError(
            f"{where}: {wheel.name} is for {theirs}: expected one for Python {stack.python}, as "
            f"cp{_compact(stack.python)}"
        )
    return version


def _compact(python: str) -> str:
    major, minor = python.split(".")[:2]
    return major + minor
