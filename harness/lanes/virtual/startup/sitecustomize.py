"""Runs when a Python starts that a job on the virtual TPU has started, as a launcher's workers are.

torch_xla counts a machine's chips before anything loads the plugin, whose Python half would tell
it. So this folder comes first on ``PYTHONPATH``. Nothing is imported before a framework is.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_FRAMEWORKS = ("torch_xla", "torch_tpu", "jax")


class _FirstFramework:
    """Prepares this process when a framework is imported first; then it is not asked any more."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the framework's spec as the finders see it that the preparation adds.

        The import under way asks none of them: they come before the one that it asks now. Raises
        ImportError when this Python has no xla-harness.
        """
        del path, target
        if name not in _FRAMEWORKS:
            return None
        sys.meta_path.remove(self)
        try:
            from harness.lanes.virtual import process
        except ImportError as error:
            title = os.environ.get("VIRTUAL_TPU_TITLE", "TPU")
            raise ImportError(
                f"virtual {title}: {sys.executable} has {name} but no xla-harness, which has to be "
                f"installed beside it: {error}"
            ) from error
        process.prepare_frameworks()
        return importlib.util.find_spec(name)


def _run_next() -> None:
    """Run the module of this name that this one hides, if there is one."""
    own = Path(__file__).parent
    path = [entry for entry in sys.path if Path(entry).resolve() != own.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _FirstFramework())
_run_next()
