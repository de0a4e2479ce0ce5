"""Messages between processes of the harness: one framing, one decoder, typed messages.

A message is a frozen dataclass and travels as a JSON object with its type's name. ``Lines`` frames
a byte stream, between a case's process and its supervisor (``cases``) and between the workers of a
job (``jobs``). ``Packets`` frames what a case's process reports: the case inherits that descriptor,
so packets with a token keep stray writes apart from messages.

Two conversations differ. The ranks of ``harness.isolation.ranks`` return any Python object,
which JSON can't say, so each leaves a pickle in a memory file of its own. The coordinator of the
virtual TPU speaks short lines of text, because both of its sides are C without a JSON parser.
"""

from __future__ import annotations

import hmac
import secrets

_TOKEN_BYTES = 32


def new_token() -> str:
    """Return 64 random hexadecimal digits that prove that a message belongs to a conversation."""
    return secrets.token_hex(_TOKEN_BYTES)


def is_token(given: str, expected: str) -> bool:
    """Return whether the tokens are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
