"""Names from outside as file names, as text on a page and in the order that a person expects.

A case may be called ``../../etc/passwd`` or ``<script>``; what it is called never reaches a path.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from harness.model.case_id import test_of
from harness.printable import INVISIBLE

_SAFE = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_UNSAFE = re.compile(r"[^a-z0-9_-]+")
# What an HTML or XML file can't hold, and what would reorder or hide the text around it.
_HIDDEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufff9-\uffff{INVISIBLE}]")
_PICTURES = 0x2400  # Unicode's pictures of control characters
_PARTS = re.compile(r"(\d+)")


def slug(text: str, *key: str) -> str:
    """Return a file name for any text, readable where possible, unique for text and key."""
    whole = "\0".join((text, *key)).encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(whole).hexdigest()[:12]
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    match = _SAFE.match(_UNSAFE.sub("-", plain).strip("-_"))
    return f"{match[0].rstrip('-_')}-{digest}" if match else digest


@cache
def case_slug(case: str) -> str:
    """Return the last part of the addresses of a case."""
    return slug(test_of(case), case)


def case_page(case: str) -> str:
    """Return the address of a case that has its own page, from the site's root."""
    return f"case/{case_slug(case)}.html"


def shared_page(slug: str) -> str:
    """Return the address of the page that a case shares: the hash in its slug says which it is."""
    return f"case/{slug.rpartition('-')[2][:2]}.html"


def shared_case_page(case: str) -> str:
    """Return the address of a case on the page that it shares."""
    slug = case_slug(case)
    return f"{shared_page(slug)}#{slug}"


def run_page(run: str) -> str:
    """Return the address of a run's page."""
    return f"run/{slug(run)}.html"


def cell_page(area: str, stack: str, lane: str) -> str:
    """Return the address of the cases of one area on one stack and lane."""
    return f"cell/{slug(f'{area[:20]}-{stack[:20]}', area, stack, lane)}.html"


def pair_page(stack: str, other: str) -> str:
    """Return the address of two stacks side by side."""
    return f"compare/{slug(f'{stack[:20]}-{other[:20]}', stack, other)}.html"


def visible(text: str) -> str:
    """Text with a picture or the number of each character that a page can't or must not hold."""
    return _HIDDEN.sub(_shown, text)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which 2.10 comes after 2.9."""
    parts = (part for part in _PARTS.split(text) if part)
    return tuple((1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts)


def ordered(names: Sequence[str]) -> list[str]:
    """Names without repetition in natural order."""
    return sorted(set(names), key=natural)


def _shown(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x20:
        return chr(_PICTURES + number)
    return "\u2421" if number == 0x7F else f"<U+{number:04X}>"
