"""A package that stands installed in a folder, with entry points of its own."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path


def install(  # noqa: PLR0913 - what a distribution says of itself
    folder: Path,
    name: str,
    modules: Mapping[str, str],
    entry_points: str = "",
    version: str = "1",
    *,
    needs: str = "",
) -> str:
    """Put a distribution into ``folder``; the PYTHONPATH on which it and the harness are found.

    ``needs`` are further lines of its metadata, as ``Requires-Dist: other==1``.
    """
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    )
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    for module, body in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(body))
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
