"""Which functions of the C API no check calls."""

from __future__ import annotations

import re
from pathlib import Path

from pypjrt import _abi

from harness.conformance.plugin_check import LEVELS

_NAME = re.compile(r"PJRT_[A-Za-z]+(?:_[A-Za-z]+)*")


def uncovered() -> tuple[str, ...]:
    """Return the functions of the newest header that the text of no check names."""
    folder = Path(__file__).parent
    modules = [folder / f"{name}.py" for name in LEVELS[0].modules]
    texts = [path.read_text() for path in (*modules, folder / "client.py", folder / "api.py")]
    named = {name for text in texts for name in _NAME.findall(text)}
    abi = _abi.load(*_abi.available()[0])[0]
    return tuple(name for name in abi.SLOT if name not in named)
