"""Check this machine, and an environment's packages for compatibility; nothing is imported."""

from __future__ import annotations

import ast
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.errors import BadInputError
from harness.lanes.virtual import library
from harness.model.fit import unmet
from harness.platforms.tpu import libtpu_file
from harness.stacks import gpu_checks, uv
from harness.stacks.checked import Check
from harness.stacks.environments import Environments
from harness.stacks.stack import Stack

_GB = 1e9
_UNSURE = timedelta(days=7)  # after the day from which jax takes libtpu to be new enough


def machine(stacks: Sequence[Stack], environments: Environments) -> Iterator[Check]:
    """Check what commands need from this machine."""
    yield _system()
    yield _compiler()
    yield _virtual_tpu()
    yield _disk(stacks, environments.cache)
    yield from _pythons(stacks)
    yield _tpu()
    yield from gpu_checks.machine()


def _system() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    fits = system == "Linux x86_64"
    return Check("system", system, "" if fits else "PyPI has torch_xla for Linux on x86-64 only")


def _compiler() -> Check:
    try:
        name = next(iter(shlex.split(os.environ.get("CC", ""))), "cc")
    except ValueError as error:
        raise BadInputError(f"CC: expected a command: {error}") from error
    path = shutil.which(name)
    remedy = "" if path else "apt install gcc libc6-dev, or name a compiler in CC"
    return Check("C compiler", path or f"no {name}", remedy)


def _virtual_tpu() -> Check:
    try:
        library.backend_path()
    except BadInputError:
        return Check("virtual TPU", "no backend", "pip install xla-cpu-pjrt==0.0.1")
    if not library.PLUGIN.exists():
        return Check("virtual TPU", "not compiled", "install xla-harness again, with a C compiler")
    return Check("virtual TPU", "compiled")


def _disk(stacks: Sequence[Stack], cache: Path) -> Check:
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free / _GB
    needed = max((stack.disk for stack in stacks), default=0.0)
    remedy = f"a stack takes up to {needed:g} GB: `xla-harness stacks remove` frees some"
    return Check("disk", f"{free:.0f} GB free for {cache}", "" if free > needed else remedy)


def _pythons(stacks: Sequence[Stack]) -> Iterator[Check]:
    for version in sorted({stack.python for stack in stacks}, key=Version):
        try:
            yield Check(f"Python {version}", uv.python(version))
        except BadInputError:
            yield Check(f"Python {version}", "not found", uv.remedy(version))


def _tpu() -> Check:
    chips = [*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")]
    if chips:
        return Check("TPU", f"{len(chips)} chips", needed=False)
    remedy = "lanes cpu and virtual-tpu need none"
    return Check("TPU", "none", remedy, needed=False)


def fit(python: Path) -> Iterator[Check]:
    """Check from their metadata that the packages of an interpreter are compatible."""
    folder = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    yield from packages_fit(folder)


def packages_fit(folder: Path) -> Iterator[Check]:
    """Check from their metadata that the packages in a folder are compatible."""
    every = distributions(path=[str(folder)])
    packages: dict[str, Distribution] = {canonicalize_name(d.metadata["Name"]): d for d in every}
    yield from _torch(packages)
    yield from _torch_tpu(packages, folder)
    yield from _jaxlib(packages)
    yield from _mosaic(packages, folder)
    yield from gpu_checks.plugin(packages)


def _torch(packages: Mapping[str, Distribution]) -> Iterator[Check]:
    if "torch" not in packages or "torch-xla" not in packages:
        return
    torch, torch_xla = Version(packages["torch"].version), Version(packages["torch-xla"].version)
    # torch_xla's library is linked to one torch: another one's symbols are missing at import.
    fits = torch.release[:2] == torch_xla.release[:2]
    remedy = "" if fits else f"torch_xla {torch_xla} is built for torch {torch_xla.base_version}"
    yield Check("torch, torch_xla", f"{torch}, {torch_xla}", remedy)


def _torch_tpu(packages: Mapping[str, Distribution], folder: Path) -> Iterator[Check]:
    if "torch-tpu" not in packages:
        return
    versions = {"python": folder.parent.name.removeprefix("python")}
    versions |= {package.metadata["Name"]: package.version for package in packages.values()}
    own = packages["torch-tpu"]
    remedy = "; ".join(unmet(own, {name.replace("-", "_"): v for name, v in versions.items()}))
    yield Check("torch_tpu", own.version, remedy and f"torch_tpu {own.version} {remedy}")


def _jaxlib(packages: Mapping[str, Distribution]) -> Iterator[Check]:
    if "jax" not in packages or "jaxlib" not in packages:
        yield Check("jax, jaxlib", "none", "lane tpu-aot and Pallas need them", needed=False)
        return
    jax, jaxlib = packages["jax"], packages["jaxlib"].version
    wants = [r for r in map(Requirement, jax.requires or []) if r.name == "jaxlib" and not r.marker]
    wrong = [r for r in wants if not r.specifier.contains(jaxlib, prereleases=True)]
    remedy = f"jax {jax.version} wants {wrong[0]}" if wrong else ""
    yield Check("jax, jaxlib", f"{jax.version}, {jaxlib}", remedy)


def _mosaic(packages: Mapping[str, Distribution], folder: Path) -> Iterator[Check]:
    libtpu = next((packages[n] for n in ("libtpu", "libtpu-nightly") if n in packages), None)
    if libtpu is None:
        yield Check("libtpu", "none", "lane tpu-aot and real TPUs need one", needed=False)
        return
    built, guard = built_on(folder / "libtpu" / "libtpu.so"), mosaic_guard(folder)
    if built is None or guard is None:
        yield Check("libtpu", libtpu.version)
        return
    jax = packages["jax"].version
    text = f"{libtpu.version}, built {built}"
    yield Check(
        "libtpu, Mosaic", text, mosaic_remark(jax, libtpu.version, built, guard), needed=False
    )


def mosaic_remark(jax: str, libtpu: str, built: date, guard: date) -> str:
    """Return what to do about a libtpu that may be too old for jax's newest Mosaic version.

    For a libtpu built before ``guard`` jax writes an older version, which it reads. One built just
    after may come from sources just before: 0.0.21, a day younger than the guard of jax 0.7.1,
    refuses every kernel. Dates can't decide that; compiling does.
    """
    if not timedelta(0) <= built - guard < _UNSURE:
        return ""
    return (
        f"jax {jax} writes its newest Mosaic version for libtpu built since {guard}; whether this "
        f"one reads it: xla-harness matrix --lanes tpu-aot --stacks 2.9.0+jax={jax}+libtpu={libtpu}"
    )


def built_on(path: Path) -> date | None:
    """Return the day on which a libtpu was built, by its own record."""
    if not path.exists():
        return None
    text = libtpu_file.build(path)
    return datetime.fromtimestamp(int(text[-11:-1]), UTC).date() if text else None


def mosaic_guard(folder: Path) -> date | None:
    """Return the day of build from which jax writes libtpu the newest Mosaic version.

    It is in ``get_ir_version`` of jax/_src/tpu_custom_call.py, which calls
    is_cloud_tpu_older_than(). Returns None before jax 0.6.
    """
    path = folder / "jax" / "_src" / "tpu_custom_call.py"
    if not path.exists():
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "is_cloud_tpu_older_than"
        and all(isinstance(argument, ast.Constant) for argument in call.args)
    ]
    days = [date(*(ast.literal_eval(argument) for argument in call.args)) for call in calls]
    return max(days, default=None)


def here() -> Iterator[Check]:
    """Check that this environment's packages are compatible."""
    spec = find_spec("torch_xla") or find_spec("torch_tpu") or find_spec("jax")
    if spec is not None and spec.origin is not None:
        yield from packages_fit(Path(spec.origin).parents[1])
