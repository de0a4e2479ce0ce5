"""The Python half of the plugin, in each process that loads it; the plugin itself calls it."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import wrapt
from packaging.version import Version

from harness.frameworks import FRAMEWORKS
from harness.lanes import events
from harness.lanes.virtual import (
    async_collectives,
    callbacks,
    divided_calls,
    kept_programs,
    lapack,
    library,
    own_frames,
    pallas,
    raised,
    vendor_libraries,
)
from harness.lanes.virtual.sites import NEAR, RUNNERS, is_runners, is_users
from harness.platforms import platform_here

_Frame = tuple[int, CodeType, int]  # thread, code, line: of each thread, innermost first
_RUNNERS = (*RUNNERS, f"{Path(__file__).parent}/")
_DEEPEST = 12  # frames of a stack that are told
_TAKES_THE_OLDER = Version("0.4.36")  # of its own StableHLO and of the one that a plugin reads


def start() -> str:
    """Make this process ready for a virtual TPU; starts no client and imports no framework.

    Does nothing in a process that has loaded the plugin for those that are forked from it.
    """
    if "VIRTUAL_TPU_TOPOLOGY" not in os.environ:
        return ""
    return _start()


@cache
def _start() -> str:
    plugin = ctypes.CDLL(os.environ["VIRTUAL_TPU_PLUGIN"])
    _settle_at_exit()
    callbacks.attach(plugin)
    own_frames.attach(plugin)
    pallas.record_kernels()
    wrapt.register_post_import_hook(partial(lapack.register, plugin), "jaxlib.lapack")
    kept_programs.keep_here()
    prepare_frameworks()
    return ""


@cache
def prepare_frameworks() -> None:
    """Let frameworks find the platform's devices when they are imported."""
    platform = platform_here()
    for name, hook in (platform.on_import or {}).items():
        wrapt.register_post_import_hook(hook, name)
    vendor_libraries.replace(platform)
    wrapt.register_post_import_hook(_end_without_gil, "torch_xla")
    raised.note_in_pools()
    wrapt.register_post_import_hook(async_collectives.accept, "jax._src.compiler")
    if platform.calls_python:
        wrapt.register_post_import_hook(divided_calls.accept, "jax._src.compiler")
    wrapt.register_post_import_hook(_note_rethrown, "torch_xla")
    wrapt.register_post_import_hook(_settle_before, "torch_xla")
    wrapt.register_post_import_hook(_settle_children, "multiprocessing.util")
    for name in ("jax._src.api", "torch_xla.torch_xla"):  # imported after their own exit hooks
        wrapt.register_post_import_hook(_note_clients_at_exit, name)


def settle() -> None:
    """Wait until all that this process has queued on its devices has run, or can't any more.

    Records the error that torch_xla keeps for a call that has not come. A process that ends before,
    others may wait for.
    """
    if "VIRTUAL_TPU_TOPOLOGY" not in os.environ or not library.PLUGIN.exists():
        return
    plugin = ctypes.CDLL(str(library.PLUGIN))
    runtime = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    if plugin.virtual_tpu_has_client() and runtime and runtime._xla_runtime_is_initialized():
        # torch_xla executes in a thread of its own, which may not have begun.
        waits = None
        try:
            runtime._xla_wait_device_ops([])
        except RuntimeError as error:
            # What has waited for the execution may have raised the same error before.
            waits = None if plugin.virtual_tpu_raised_again() else str(error)
        if waits is not None:
            plugin.virtual_tpu_record_error(waits.encode())
        plugin.virtual_tpu_raised(int(waits is not None))
    plugin.virtual_tpu_settle()


def _settle_at_exit() -> None:
    """Settle before the exit hooks of all that has been imported so far."""
    atexit.unregister(settle)
    atexit.register(settle)


def _settle_before(framework: Any) -> None:
    """torch_xla ends its client in an exit hook, which is registered while it is imported."""
    del framework
    if _start.cache_info().currsize:
        _settle_at_exit()


def _settle_children(util: Any) -> None:
    """Register exit hooks for multiprocessing's forks, which skip the interpreter's."""
    util.register_after_fork(settle, lambda hook: util.Finalize(None, hook, exitpriority=0))


def stack(frames: Sequence[_Frame], thread: int) -> str:
    """Return the thread's Python stack from the test on, the innermost call last.

    Frames between JAX and its compilation are left out.
    """
    summaries = _summaries(frames, thread)
    summaries = [frame for frame in summaries if frame.filename != async_collectives.__file__]
    own = [n for n, frame in enumerate(summaries) if frame.filename.startswith(_RUNNERS)]
    return "".join(traceback.format_list(summaries[max(own, default=-1) + 1 :]))


def _summaries(frames: Sequence[_Frame], thread: int) -> list[traceback.FrameSummary]:
    """Return the frames of one thread, the innermost last."""
    return [
        traceback.FrameSummary(code.co_filename, line, code.co_name)
        for ident, code, line in reversed(frames)
        if ident == thread
    ]


def stacks(frames: Sequence[_Frame], thread: int) -> str:
    """Return where the user's code is in each thread that runs some, the main thread first.

    If no thread does any more, return what ended the program, or where the main thread waits after
    its end, as JAX does for the other processes.
    """
    del thread  # it is the plugin's own
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = []
    for ident in sorted({ident for ident, _, _ in frames}, key=lambda ident: ident != main):
        own = _of_this_process(_summaries(frames, ident))
        users = [frame for frame in own if is_users(frame.filename)][-_DEEPEST:]
        if users and ident in names:
            texts.append(f"  thread {names[ident]}:\n")
            texts += traceback.format_list(users)
    return "".join(texts) or raised.raised() or _behind_the_end(_summaries(frames, main or 0))


def _behind_the_end(frames: list[traceback.FrameSummary]) -> str:
    """Return the main thread's frames once the program has ended; "" before, or without any."""
    if threading.main_thread().is_alive() or not frames:
        return ""
    return "".join(["  the program has ended; then:\n", *traceback.format_list(frames[-_DEEPEST:])])


def _of_this_process(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames without those in which the process that forked this one was then."""
    starts = [
        n
        for n, frame in enumerate(frames)
        if frame.name == "_bootstrap" and frame.filename.endswith("/multiprocessing/process.py")
    ]
    return frames[max(starts, default=0) :]


def stablehlo(frames: Sequence[_Frame], thread: int) -> str:
    """Return the newest StableHLO that frameworks may write, if it is not the backend's.

    That is what this process's jaxlib writes, if it can't write an older version; and what jaxlib
    reads, for TorchTPU, which has no older form of a scan, as in ``cumsum``. What JAX itself would
    write then has replica groups in a form that the CPU's compiler does not know.
    """
    ours = "jaxlib" in sys.modules and Version(version("jaxlib")) < _TAKES_THE_OLDER
    scans = "torch_tpu" in sys.modules and find_spec("jaxlib") is not None
    scans = scans and not _is_jax_asking(frames, thread)
    if not ours and not scans:
        return ""
    from jaxlib.mlir.dialects import stablehlo as dialect

    return str(dialect.get_current_version())


def _is_jax_asking(frames: Sequence[_Frame], thread: int) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or jax.__file__ is None:
        return False
    folder = f"{Path(jax.__file__).parent}/"
    return any(ident == thread and code.co_filename.startswith(folder) for ident, code, _ in frames)


def site(frames: Sequence[_Frame], thread: int) -> str:
    """Return the user's lines that this call comes from, innermost first, one after the other.

    In a thread without Python, those that the main thread is at, which may be beyond: they begin
    with "near".
    """
    near = "" if any(ident == thread for ident, _, _ in frames) else NEAR
    shown = threading.main_thread().ident if near else thread
    lines = []
    for ident, code, line in frames:
        if ident != shown:
            continue
        if is_runners(code.co_filename):
            break
        if is_users(code.co_filename):
            lines.append(f"{code.co_filename}:{line} {code.co_name}")
    more = ", ..." if len(lines) > _DEEPEST else ""
    return f"{near}{', called from '.join(lines[:_DEEPEST])}{more}" if lines else ""


def _note_clients_at_exit(framework: Any) -> None:
    """Note which clients there are when the process ends, before the framework ends them."""
    del framework
    atexit.unregister(_note_clients)
    atexit.register(_note_clients)


def _note_clients() -> None:
    if events.VARIABLE not in os.environ:
        return
    clients = [client for framework in FRAMEWORKS.values() for client in framework.clients()]
    if clients:
        events.write("clients", {"clients": clients})


def _end_without_gil(torch_xla: Any) -> None:
    """Make torch_xla's exit hook wait for its devices without the GIL.

    It holds it, and a Pallas kernel that has not run yet is interpreted in Python.
    """
    extension = torch_xla._XLAC
    theirs = extension._prepare_to_exit

    def prepare_to_exit() -> None:
        if extension._xla_runtime_is_initialized():
            extension._xla_wait_device_ops([])
        theirs()

    extension._prepare_to_exit = prepare_to_exit


def _note_rethrown(torch_xla: Any) -> None:
    """Have the plugin note which errors torch_xla raises, by itself and by what waits in torch."""
    torch = Path(sys.modules["torch"].__path__[0]) / "lib" / "libtorch_cpu.so"
    plugin = ctypes.CDLL(os.environ["VIRTUAL_TPU_PLUGIN"])
    for path in (torch_xla._XLAC.__file__, torch):
        plugin.virtual_tpu_note_rethrown(os.fsencode(path))
