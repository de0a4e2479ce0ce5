"""Imports what cases need before the first of them is forked."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

from harness.errors import BadInputError
from harness.isolation.garbage import importing


def preload(modules: Sequence[str]) -> None:
    """Import what cases need, once, and keep its memory shared with every child.

    A name with ``?`` behind it may be missing. Raises BadInputError when another one can't be
    imported.
    """
    with importing():
        for name in modules:
            _import(name)
        # Makes its table of all modules' files, with which a child that shows a traceback, or
        # registers an operator of torch, would begin: 0.1 s.
        inspect.getmodule(inspect.currentframe())


def _import(name: str) -> None:
    try:
        importlib.import_module(name.removesuffix("?"))
    except ImportError as error:
        if not name.endswith("?"):
            raise BadInputError(f"xla_preload: {name} can't be imported: {error}") from error
