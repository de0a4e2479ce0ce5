"""Traces, compiles and runs random programs of torch_xla, in the executor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.fuzz.endings import described, different, first_line

# After an error in a traced function, dispatch modes stay on; the next program may crash of them.
SPOILING = ("not lowered", "refused")
OPTIMIZES = False  # XLA reads from the environment how much to optimize
_LOCATION = re.compile(r' \[unknown\]| "[^"\n]*"\(#loc\d*\)|^ ?(?:at )?#loc.*\n', re.MULTILINE)


def start() -> Mapping[str, Any]:
    """Start the runtime with SPMD; return what devices there are, and the version."""
    import torch_xla
    import torch_xla.runtime as xr

    xr.use_spmd()
    devices = xr.global_runtime_device_count()
    return {"devices": devices, "gspmd": False, "version": torch_xla.__version__}


def get_ready(number: int) -> None:
    """Do nothing: the cache of compiled programs has a size."""
    del number


def ending(program: Mapping[str, Any], **_: bool) -> Mapping[str, Any]:
    """Trace, compile and run a program; return how it ended, and the StableHLO if it failed."""
    import torch_xla

    namespace: dict[str, Any] = {}
    try:
        exec(compile(program["text"], "program", "exec"), namespace)  # noqa: S102 - it is ours
        results = _traced(namespace)
    except Exception as error:
        return described("not lowered", first_line(error))
    if program["is_lowered_only"]:
        return described("right", "", _stablehlo(results))
    try:
        torch_xla.sync()
        arrays = [_array(result) for result in results]
    except Exception as error:
        return described("refused", first_line(error), _stablehlo(_traced(namespace)))
    detail = different(arrays, namespace["EXPECTED"])
    if not detail:
        return described("right", "")
    return described("wrong", detail, _stablehlo(_traced(namespace)))


def _traced(namespace: Mapping[str, Any]) -> Sequence[Any]:
    given = [tensor.to("xla") for tensor in namespace["GIVEN"]]
    results: Sequence[Any] = namespace["program"](*given)
    return results


def _array(tensor: Any) -> Any:
    import torch

    host = tensor.detach().cpu()
    return host.to(torch.float32).numpy() if host.dtype.is_floating_point else host.numpy()


def _stablehlo(results: Sequence[Any]) -> str:
    """Return the program without its locations, which are written so that nobody can read them.

    It gets the number of devices, which only the compiler's options say.
    """
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    partitions = f"mhlo.num_partitions = {xr.global_runtime_device_count()} : i32, "
    text = _LOCATION.sub("", xm.get_stablehlo(list(results)))
    return text.replace("attributes {", f"attributes {{{partitions}", 1)
