"""Control groups of this process, of both versions."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def folders(controller: str) -> list[Path]:
    """Return the folders of this process's groups that may have the controller's files."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    groups = (line.split(":", 2) for line in lines)
    return [
        _ROOT / controllers / path.lstrip("/")
        for _, controllers, path in groups
        if controllers in ("", controller)
    ]


def folders_above(folder: Path) -> list[Path]:
    """Return the folder and those above it, whose limits hold in it, too."""
    return [above for above in (folder, *folder.parents) if above.is_relative_to(_ROOT)]
