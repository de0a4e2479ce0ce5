"""The reference, made from the code while the site is built, called by mkdocs-gen-files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import mkdocs_gen_files
from mkdocs.exceptions import PluginError

from harness.errors import BadInputError

sys.path.insert(0, str(Path(__file__).parent))

import commands
import issues
import migration
import plugin
import python_api
import records

_ROOT = Path(__file__).parents[2]


def _changes() -> str:
    return (_ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](../")


def _contributing() -> str:
    """CONTRIBUTING.md, whose links start at the root."""
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    return re.sub(r"\]\(docs/", "](", text).replace("](CHANGELOG.md)", "](reference/changes.md)")


PAGES: Mapping[str, Callable[[], str]] = {
    "contributing.md": _contributing,
    "migration.md": migration.page,
    "reference/changes.md": _changes,
    "reference/commands.md": commands.page,
    "reference/junit.md": records.junit,
    "reference/pytest.md": plugin.page,
    "reference/python.md": python_api.page,
    "reference/sql.md": records.sql,
    "reference/upstream.md": issues.page,
}

for path, make in PAGES.items():
    try:
        text = make()
    except BadInputError as error:
        raise PluginError(str(error)) from error
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)
