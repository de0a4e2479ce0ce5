"""What is found out about the installed libtpu without loading it."""

from __future__ import annotations

from importlib import metadata

import pytest

from harness.platforms.tpu import libtpu_file

ASKED = 'libtpu==0.0.50.*; extra == "tpu"'


@pytest.mark.parametrize(
    ("installed", "note"),
    [
        ("0.0.17", "jax 0.12.0.1 asks for libtpu==0.0.50.*, and 0.0.17 is installed"),
        ("0.0.50.1", ""),
        (None, ""),
    ],
)
def test_a_libtpu_that_jax_does_not_ask_for(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, note: str
) -> None:
    def version(name: str) -> str:
        if name == "libtpu" and installed is None:
            raise metadata.PackageNotFoundError(name)
        return {"jax": "0.12.0.1", "libtpu": installed or ""}[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy>=2", ASKED])
    assert libtpu_file.not_asked_for() == note
