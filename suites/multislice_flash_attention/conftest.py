import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

_FLAX = ("flax", "flax.training", "flax.training.checkpoints")


@pytest.fixture
def torchax():
    """torchax, importable: torch_xla 2.9.0 ships it, but not the flax that its checkpoints want.

    Empty modules stand in for flax, of which nothing else in torchax makes use. An attempt that
    failed earlier left parts of torchax behind, which are imported anew; a whole one must stay, it
    can't be imported twice. None on a torch_xla from before 2.8, which does without it.
    """
    if find_spec("torch_xla._internal.jax_workarounds") is None:
        return None
    if "torchax" in sys.modules:
        return sys.modules["torchax"]
    for name in [name for name in sys.modules if name.split(".")[0] == "torchax"]:
        del sys.modules[name]
    for name in _FLAX:
        module = sys.modules.setdefault(name, ModuleType(name))
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    from torch_xla._internal.jax_workarounds import maybe_get_torchax

    module = maybe_get_torchax()
    assert module is not None, "torchax can't be imported, even with modules in flax's place"
    return module
