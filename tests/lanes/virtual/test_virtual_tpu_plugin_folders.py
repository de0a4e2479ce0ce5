"""The plugin's folders are in the list at the top of ``plugin.h``, and include those above only."""

from __future__ import annotations

import re
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
        if any(folder.glob("*.[ch]"))
    }


def faults(plugin: Path) -> list[str]:
    """Describe what the list lacks and has too much, and each include of a folder not above."""
    order = re.findall(r"(?m)^// (\w+)/ ", (plugin / "plugin.h").read_text())
    graph = includes(plugin)
    texts = [f"{name}/ is not listed" for name in sorted(graph.keys() - set(order))]
    texts += [f"{name}/ is not there" for name in order if name not in graph]
    return texts + [
        f"{name}/ includes {other}/"
        for place, name in enumerate(order)
        for other in sorted(graph.get(name, set()) - set(order[:place]))
    ]


def test_folders_are_listed_and_include_those_above() -> None:
    assert includes(PLUGIN)["meet"] >= {"compile", "host", "job"}
    assert faults(PLUGIN) == []


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        (["api", "job"], []),
        (["job", "api"], ["job/ includes api/"]),
        (["api"], ["job/ is not listed"]),
        (["api", "job", "meet"], ["meet/ is not there"]),
    ],
)
def test_faults_are_seen(tmp_path: Path, listed: list[str], fault: list[str]) -> None:
    (tmp_path / "plugin.h").write_text("".join(f"// {name}/  a folder\n" for name in listed))
    for name, included in {"api": "api", "job": "api"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.c").write_text(f'#include "{included}/{included}.h"\n')
    assert faults(tmp_path) == fault


def test_every_source_is_listed() -> None:
    """A newcomer finds a file by the list at the top of ``plugin.h``."""
    listed = re.findall(r"(?m)^// +([\w]+\.c) ", (PLUGIN / "plugin.h").read_text())
    assert sorted(listed) == sorted(source.name for source in PLUGIN.rglob("*.c"))
