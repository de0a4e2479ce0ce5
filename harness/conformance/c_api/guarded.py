"""Memory that ends where a struct ends: whoever reads or writes behind it dies of it."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_NONE = 0  # PROT_NONE of <sys/mman.h>


class GuardedStruct:
    """A copy of a struct, cut to ``size`` bytes, before a page that nobody can touch.

    ``size`` becomes its struct_size. Alignment to 8 bytes may leave up to 7 bytes before the page.
    """

    def __init__(self, struct: Any, size: int) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(first + page), ctypes.c_size_t(page), _NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.address = first + page - (size + 7) // 8 * 8
        ctypes.memmove(self.address, ctypes.addressof(struct), size)
        ctypes.c_size_t.from_address(self.address).value = size
        self._kept = struct
