"""A page as a browser would see it."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = {"meta", "link", "input", "br", "wbr", "rect", "path", "polyline", "circle"}


@dataclass
class Page(HTMLParser):
    """A page's elements, text and links, as a browser would see them."""

    path: Path
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    text: str = ""
    ids: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        by_name = {name: value or "" for name, value in attributes}
        self.elements.append((tag, by_name))
        self.ids += [by_name["id"]] if "id" in by_name else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def cases(self) -> dict[str, Any]:
        """The data of a page that several cases share, by the last part of their addresses."""
        match = re.search('<template id="cases">(.*)</template>', self.path.read_text())
        cases: dict[str, Any] = (match and json.loads(zlib.decompress(b64decode(match[1])))) or {}
        return cases

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def links(self) -> Iterator[tuple[str, str]]:
        for tag, attributes in self.elements:
            for name in ("href", "src", "action"):
                if name in attributes:
                    yield tag, attributes[name]
