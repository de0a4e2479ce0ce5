"""LAPACK for programs on virtual devices: jaxlib's own handlers, which XLA's CPU plugin lacks."""

from __future__ import annotations

import ctypes
from typing import Any

_NAME_OF = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_POINTER_OF = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def register(plugin: ctypes.CDLL, lapack: Any) -> None:
    """Have programs call the handlers of the module ``jaxlib.lapack``.

    JAX before 0.5 has others besides, of an interface that the CPU plugin does not know.
    """
    for target, capsule in lapack._lapack.registrations().items():
        if target.endswith("_ffi"):
            handler = ctypes.c_void_p(_POINTER_OF(capsule, _NAME_OF(capsule)))
            plugin.virtual_tpu_register_handler(target.encode(), handler)


def register_for(plugin: ctypes.CDLL, executable: bytes) -> None:
    """Have an executable of another process call the handlers, if it calls any.

    JAX initializes them where it lowers what calls them, which has been in that process.
    """
    if b"lapack_" in executable:
        from jaxlib import lapack

        register(plugin, lapack)
        lapack._lapack.initialize()
