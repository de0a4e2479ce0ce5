"""A hook of MkDocs for links that lead out of ``docs/``: the site has no other files."""

from __future__ import annotations

import re
from typing import Any

_RULE = re.compile(r"\]\(\.\./harness/verdicts/sql(?:/(\w+)\.sql)?\)")
_APIS = "](../fixtures/migration/apis.toml)"
_FILE = re.compile(r"\[([^\]]+)\]\(\.\./(?:\.github|harness)/[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to data and rules lead to the pages that are made of them; unlink other files."""
    markdown = markdown.replace(_APIS, "](migration.md)")
    markdown = _RULE.sub(lambda rule: f"](reference/sql.md#{rule[1] or 'rules'})", markdown)
    return _FILE.sub(r"\1", markdown)
