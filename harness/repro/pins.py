"""The versions that a stack pins."""

from __future__ import annotations

from collections.abc import Mapping

from harness.stacks import constraints
from harness.stacks.catalogue import Catalogue
from harness.stacks.environments import Environments


def pins_of(name: str, stacks: Catalogue) -> tuple[Mapping[str, str], str]:
    """Versions by distribution, and Python's; raises BadInputError for an unknown stack."""
    stack = stacks.find(name)
    versions = constraints.read(constraints.resolved(stack, Environments().cache))
    return versions, stack.python
