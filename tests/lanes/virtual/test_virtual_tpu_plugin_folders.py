"""The plugin's folders include each other without a circle."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness.lanes.virtual import library

PLUGIN = Path(library.__file__).with_name("plugin")


def includes(plugin: Path) -> dict[str, set[str]]:
    """Return for each folder the others whose headers its files include."""
    return {
        folder.name: {
            name
            for source in folder.glob("*.[ch]")
            for name in re.findall(r'(?m)^#include "(\w+)/', source.read_text())
            if name != folder.name
        }
        for folder in plugin.iterdir()
        if any(folder.glob("*.c"))
    }


def test_folders_form_no_circle() -> None:
    graph = includes(PLUGIN)
    assert graph["meet"] >= {"compile", "host", "job"}
    assert next(iter(TopologicalSorter(graph).static_order())) == "api"


def test_a_circle_is_seen(tmp_path: Path) -> None:
    for name, included in {"api": "job", "job": "api"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.c").write_text(f'#include "{included}/{included}.h"\n')
    with pytest.raises(CycleError):
        TopologicalSorter(includes(tmp_path)).prepare()


def test_every_source_is_listed() -> None:
    """A newcomer finds a file by the list at the top of ``plugin.h``."""
    listed = re.findall(r"(?m)^// +([\w]+\.c) ", (PLUGIN / "plugin.h").read_text())
    assert sorted(listed) == sorted(source.name for source in PLUGIN.rglob("*.c"))
