"""The nodes of a syntax tree.

libcst.matchers has searches too, and takes longer to import than the rest of libcst.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import libcst as cst

N = TypeVar("N", bound=cst.CSTNode)


def walk(node: cst.CSTNode, removed: Collection[cst.CSTNode] = ()) -> Iterator[cst.CSTNode]:
    """Yield the node and all below it, except those that are removed."""
    if node not in removed:
        yield node
        for child in node.children:
            yield from walk(child, removed)


def find(node: cst.CSTNode, kind: type[N]) -> list[N]:
    """Return the nodes of that kind, in the order in which they begin."""
    return [inner for inner in walk(node) if isinstance(inner, kind)]
