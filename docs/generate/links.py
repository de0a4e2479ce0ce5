"""A hook of MkDocs: what a document links to outside of ``docs/`` has a page on the site."""

from __future__ import annotations

import re
from typing import Any

_RULE = re.compile(r"\]\(\.\./harness/verdicts/sql(?:/(\w+)\.sql)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to the SQL rules lead to the page that shows them."""
    return _RULE.sub(lambda found: f"](reference/sql.md#{found[1] or 'rules'})", markdown)
