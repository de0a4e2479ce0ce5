"""Compiles the plugin when the package is built, and adds recorded inputs; called by hatchling.

``python build.py TARGET [FLAG...]`` compiles it with further flags.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[3]
_PLATFORM = "linux-x86_64"  # the one that has xla-cpu-pjrt
_LIBRARY = Path("harness/lanes/virtual/libvirtual_tpu.so")
_SHIPPED = ("stacks", "expectations", "upstream.toml")  # of fixtures/, for harness.shipped
_FLAGS = ["-std=c17", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"]


class VirtualTpuBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled plugin beside its Python face."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; in an editable install too, which reads ``fixtures/`` where it is.

        Elsewhere than on Linux on x86-64, for which alone there is a backend, the package is made
        of Python only: it has no virtual devices, and what reads results or asks plugins works.

        Raises:
            SystemExit: there is no C compiler or no header, or the compiler failed.
        """
        if version == "standard":
            for name in _SHIPPED:
                build_data["force_include"][str(_ROOT / "fixtures" / name)] = (
                    f"harness/fixtures/{name}"
                )
        platform = sysconfig.get_platform()
        if platform != _PLATFORM:
            return
        compile_plugin(_ROOT / _LIBRARY, ["-shared"])
        build_data["artifacts"].append(str(_LIBRARY))
        build_data["pure_python"] = False
        # One library for every CPython: it finds functions of the stable ABI in the process by
        # name. So not py3-none: PyPy has other names, and free-threaded builds another ABI.
        build_data["tag"] = f"cp311-abi3-{platform.replace('-', '_')}"


def compile_plugin(target: Path, flags: list[str]) -> None:
    """Compile all sources to ``target``, with ``flags`` besides the usual ones."""
    with tempfile.TemporaryDirectory() as generated:
        entries = Path(generated) / "entries.inc"
        header = _include() / "pjrt_c_api.h"
        subprocess.run([sys.executable, _HERE / "entries.py", header, entries], check=True)
        sources = sorted(map(str, _HERE.rglob("*.c")))
        version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
        new = target.with_suffix(f".{os.getpid()}")  # replaced at once: a process may be loading it
        command = [
            *_compiler(),
            *_FLAGS,
            f'-DVIRTUAL_TPU_VERSION="{version}"',
            f"-I{_HERE}",
            f"-I{header.parent}",
            f"-I{generated}",
            # No path of this machine in the debug information: the same sources, the same library.
            f"-ffile-prefix-map={_ROOT}=.",
            f"-ffile-prefix-map={generated}=generated",
            f"-ffile-prefix-map={header.parent}=include",
            *flags,
            *sources,
            *("-o", str(new), "-ldl", "-lpthread"),
        ]
        done = subprocess.run(command, check=False)
    if done.returncode:
        new.unlink(missing_ok=True)
        raise SystemExit(f"xla-harness: the virtual TPU does not compile: {shlex.join(command)}")
    new.replace(target)


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        raise SystemExit(
            f"xla-harness: no C compiler {command[0]!r}: the virtual TPU is compiled when the "
            "package is installed. Install one (Debian: apt install gcc libc6-dev) or name it in CC"
        )
    return command


def _include() -> Path:
    spec = find_spec("xla_plugins")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        include = Path(folder) / "xla_cpu_pjrt" / "include"
        if (include / "pjrt_c_api.h").exists():
            return include
    raise SystemExit("xla-harness: pjrt_c_api.h is missing: expected the package xla-cpu-pjrt")


if __name__ == "__main__":
    compile_plugin(Path(sys.argv[1]), sys.argv[2:])
