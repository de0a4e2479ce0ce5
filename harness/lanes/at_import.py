"""Environment variables that must be set when a framework is imported, before any case is known.

torch_tpu loads the library of the TPU when it is imported, and torch imports torch_tpu. The library
stays loaded in every process that is forked later, so it has to be the plugin from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from harness.errors import BadInputError
from harness.lanes.hardware.lane import FORWARD
from harness.lanes.virtual import library
from harness.platforms.tpu import TPU, machine


def environment(lanes: Sequence[str]) -> Mapping[str, str]:
    """Return the variables for a session on these lanes, maybe on none.

    They are empty where torch_tpu is not installed, and for a session without a lane on a machine
    with a TPU, whose tests may be about that TPU.
    """
    if find_spec("torch_tpu") is None or (not lanes and machine.chips()):
        return {}
    try:
        if TPU.name in lanes:
            behind = {FORWARD: machine.libtpu()}
        else:
            behind = {"VIRTUAL_TPU_BACKEND": str(library.backend_path())}
    except BadInputError:  # said of the lane, by who asks for it
        return {}
    return {"TPU_LIBRARY_PATH": str(library.PLUGIN), **behind}
