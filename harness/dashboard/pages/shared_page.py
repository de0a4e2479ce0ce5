"""Pages that many cases share: those with news as text, and all of them as data for the script."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections import defaultdict

from harness.dashboard.case_facts import CaseFacts
from harness.dashboard.page_maker import Build
from harness.render.page_names import case_slug, shared_page, visible

_ELSEWHERE = "null"  # a case that has a page of its own; it may have been here on an earlier night
_TOGETHER = 50  # cases; a few at a time would leave the cache
_CONTROL = re.compile(r"\\[bfru]")  # a character in JSON that a page may not hold


class SharedPage:
    """The cases of one page; their data is compressed as it comes."""

    def __init__(self) -> None:
        self.size = 0  # cases that have no other page
        self.summaries: list[str] = []
        self._waiting: list[str] = ['{"":null']
        self._packed = bytearray()
        self._compressor = zlib.compressobj()

    def add(self, slug: str, data: str) -> None:
        """Add the JSON of a case."""
        self.size += data != _ELSEWHERE
        self._waiting.append(f',"{slug}":{data}')
        if len(self._waiting) == _TOGETHER:
            self._compress()

    def packed(self) -> str:
        """Return the data of all cases as ``unpack`` in ``static/data.js`` reads it."""
        self._waiting.append("}")
        self._compress()
        return b64encode(self._packed + self._compressor.flush()).decode()

    def _compress(self) -> None:
        self._packed += self._compressor.compress("".join(self._waiting).encode())
        self._waiting = []


class SharedPages:
    """Takes the cases one after the other, and publishes the pages in the end."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._pages: dict[str, SharedPage] = defaultdict(SharedPage)

    def add(self, name: str, case: CaseFacts) -> None:
        """Add a case; of one that has its own page, what leads there from an address of old."""
        slug = case_slug(name)
        page = self._pages[shared_page(slug)]
        if name in self._build.own_pages:
            page.add(slug, _ELSEWHERE)
            return
        page.add(slug, _as_json(case))
        if name in self._build.news:
            text = self._build.render.page("case_summary.html", "case/", anchor=slug, case=case)
            page.summaries.append(text)

    def publish(self) -> None:
        """Publish the pages, if there are cases that need them."""
        for path, page in self._pages.items():
            if not page.size:
                continue
            self._build.page("several.html", path, page=page, packed=page.packed())


def _as_json(case: CaseFacts) -> str:
    """Return the case as the script reads it; all text in it can be shown as it is."""
    text = json.dumps(case, default=vars, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(_visible(json.loads(text))) if _CONTROL.search(text) else visible(text)


def _visible(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [_visible(each) for each in value]
    if isinstance(value, dict):
        return {name: _visible(each) for name, each in value.items()}
    return value
