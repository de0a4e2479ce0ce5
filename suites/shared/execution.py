"""torch_xla's lazy execution, on every release."""

import inspect

import torch_xla
from torch_xla.core import xla_model as xm


def settle() -> None:
    """Execute what is pending and wait: until then, shards can't be read."""
    if "wait" in inspect.signature(torch_xla.sync).parameters:
        torch_xla.sync(wait=True)
    else:  # torch_xla 2.4
        xm.mark_step(wait=True)
