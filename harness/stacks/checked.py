"""What a check of a machine or an environment answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """Result of one check; ``remedy`` is how to get what is missing, "" if nothing is."""

    subject: str
    value: str
    remedy: str = ""
    needed: bool = True  # False: only some lanes or stacks want it
