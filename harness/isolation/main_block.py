"""Runs what a test file does before its tests when it is started as a script."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

_RUNNERS = ("unittest.main", "absltest.main", "googletest.main", "pytest.main", "run_tests")


def run_main_block(module: ModuleType) -> None:
    """Run the statements of ``if __name__ == "__main__":`` that come before the tests start.

    torch_xla's own test files switch to SPMD there, set precisions and import what tests use. Only
    a block that ends in a test runner (``unittest.main()`` and the like) is taken for such a one.
    The command line has no options then; absl's runner parses it first, so flags get their
    defaults. Raises what the statements raise.
    """
    if not module.__file__ or not (code := _preparation(Path(module.__file__))):
        return
    arguments, sys.argv = sys.argv, [module.__file__]
    try:
        exec(code, module.__dict__)  # noqa: S102
        flags = sys.modules.get("absl.flags")
        if flags and not flags.FLAGS.is_parsed():
            flags.FLAGS(sys.argv)
    finally:
        sys.argv = arguments


@cache
def _preparation(path: Path) -> CodeType | None:
    """Return the compiled statements before the runner; None if there is no such block."""
    tree = ast.parse(path.read_text())
    before: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            for inner in statement.body:
                if _starts_tests(inner):
                    return compile(ast.Module(before, []), str(path), "exec")
                before.append(inner)
    return None


def _starts_tests(statement: ast.stmt) -> bool:
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ast.unparse(function).endswith(_RUNNERS) for function in calls)
