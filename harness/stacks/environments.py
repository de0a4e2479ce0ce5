"""Environments of stacks: made with uv in a cache folder, whole or not at all, and shared."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from filelock import FileLock, Timeout

import harness
from harness.errors import BadInputError
from harness.files import read_text
from harness.model.wheel_checksums import MANIFEST as _MANIFEST
from harness.stacks import constraints, own_wheels, uv
from harness.stacks.stack import Stack

VARIABLE = "XLA_HARNESS_CACHE"
_GB = 1e9
_LEAST = 0.5  # bytecode, in GB
_PLAN = re.compile(r"Would (download|install) (\d+) package")

Say = Callable[[str], None]


def cache_folder() -> Path:
    """``$XLA_HARNESS_CACHE``, or a folder in the user's cache."""
    own = os.environ.get(VARIABLE)
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xla-harness"


@dataclass(frozen=True)
class Environment:
    """An environment that is complete."""

    folder: Path

    @property
    def python(self) -> Path:
        """Python interpreter of the environment."""
        return self.folder / "bin" / "python"

    @property
    def manifest(self) -> dict[str, object]:
        """Data written when the environment was complete: stack, python, packages, wheels, ..."""
        path = self.folder / _MANIFEST
        try:
            data = json.loads(read_text(path))
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or "stack" not in data:
            raise BadInputError(
                f"{path}: expected what `stacks create` wrote: remove {self.folder}, and make the "
                "environment again"
            )
        return data


class Environments:
    """The environments of one cache folder; processes on one cache wait for each other."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or cache_folder()
        self._folder = self.cache / "environments"

    def constraints(self, stack: Stack) -> Path:
        """Return the stack's constraint file."""
        return constraints.resolved(stack, self.cache, constraints.harness_needs())

    def existing(self, stack: Stack) -> Environment | None:
        """Return the stack's environment, if it was made."""
        if not constraints.place_of(stack, self.cache).exists():
            return None
        folder = self._path(stack, self.constraints(stack))
        return Environment(folder) if (folder / _MANIFEST).exists() else None

    def all(self) -> list[Environment]:
        """Return all complete environments, of every stack."""
        manifests = sorted(self._folder.glob(f"*/{_MANIFEST}"))
        return [Environment(path.parent) for path in manifests]

    def create(self, stack: Stack, say: Say) -> Environment:
        """Return the stack's environment, creating it if need be; ``say`` gets progress.

        Raises BadInputError if the disk is too small, the pins don't fit together, the index can't
        be reached, or the Python is missing.
        """
        if (environment := self.existing(stack)) is not None:
            return environment
        say(f"{stack.name}: resolving")
        pinned = self.constraints(stack)
        target = self._path(stack, pinned)
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock_of(target))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"{stack.name}: another process is making this environment, waiting for it")
            lock.acquire()
        try:
            if not (target / _MANIFEST).exists():
                self._make(stack, pinned, target, say)
        finally:
            lock.release()
        return Environment(target)

    def remove(self, name: str) -> int:
        """Delete every environment of stacks of that name; how many there were."""
        environments = [e for e in self.all() if e.manifest.get("stack") == name]
        for environment in environments:
            with FileLock(_lock_of(environment.folder)):
                # First its manifest: what is half deleted must not look finished.
                (environment.folder / _MANIFEST).unlink()
                shutil.rmtree(environment.folder)
        return len(environments)

    def _make(self, stack: Stack, pinned: Path, target: Path, say: Say) -> None:
        for left in self._folder.glob(f"{target.name}.partial-*"):
            say(f"{stack.name}: removing what an interrupted create left")
            shutil.rmtree(left)
        # uv's environments can't be moved: what counts as finished is the manifest.
        part = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex[:8]}")
        start = time.monotonic()
        try:
            self._install(stack, pinned, part, say)
            manifest = {
                "stack": stack.name,
                "python": stack.python,
                "requirements": stack.requirements,
                "packages": constraints.read(pinned),
                "wheels": own_wheels.pinned(stack, pinned),
                "seconds": round(time.monotonic() - start, 1),
            }
            (part / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            if target.exists():  # without a manifest: a remove was killed
                shutil.rmtree(target)
            part.rename(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        say(f"{stack.name}: ready after {time.monotonic() - start:.0f} s")

    def _install(self, stack: Stack, pinned: Path, part: Path, say: Say) -> None:
        doing = f"stack {stack.name}"
        say(f"{stack.name}: installing {len(constraints.read(pinned))} packages")
        uv.make_environment(doing, stack.python, part)
        sync = ["pip", "sync", "--require-hashes", "--python", str(part / "bin" / "python")]
        sync += [*constraints.sources(stack), str(pinned)]
        self._check_disk(stack, uv.run(doing, *sync, "--dry-run", errors=True))
        uv.run(doing, *sync, "--strict", show=True)

    def _check_disk(self, stack: Stack, plan: str) -> None:
        """Check that the disk has room. What uv's cache has is linked and needs none."""
        amounts = {verb: int(count) for verb, count in _PLAN.findall(plan)}
        share = amounts.get("download", 0) / max(amounts.get("install", 0), 1)
        needed = max(stack.disk * share, _LEAST)
        free = shutil.disk_usage(self.cache).free / _GB
        if free < needed:
            raise BadInputError(
                f"{self.cache}: {free:.1f} GB free, stack {stack.name} may take {needed:.1f} now: "
                f"`xla-harness stacks remove` frees some, or name another folder in {VARIABLE}"
            )

    def _path(self, stack: Stack, pinned: Path) -> Path:
        text = f"{stack.python}\n{pinned.read_text('utf-8')}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self._folder / f"{stack.slug}-{digest}"


def _lock_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.lock")


def plugin_path(cache: Path) -> Path:
    """Return a folder for ``PYTHONPATH`` that holds this very harness and nothing else.

    A stack's environment does not contain the harness, so that it outlives the harness's edits.
    """
    package = Path(harness.__file__).parent
    metadata = Path(str(distribution("xla-harness").locate_file("")))
    info = next(metadata.glob("xla_harness-*.dist-info"))
    digest = hashlib.sha256(f"{package}\n{info}".encode()).hexdigest()[:12]
    folder = cache / "plugin" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for target in (package, info):
        link = folder / target.name
        if not link.is_symlink():
            try:
                link.symlink_to(target)
            except FileExistsError:  # another process was faster
                continue
    return folder
