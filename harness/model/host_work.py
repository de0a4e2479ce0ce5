"""Count of the Python and C calls of a step on the host, which a busy machine doesn't change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, TracebackType

_OWN = 2  # calls that end a block: __exit__, and setprofile in it


class HostWork:
    """Counts the calls of Python and C functions of each step, and records them.

    A time on a shared machine varies by tens of per cent. The number of calls is the same each
    time but for the order of sets, which moves it by a few in ten thousand. What native code does
    between two calls is not counted.
    """

    def __init__(self, record: Callable[[str, int], None]) -> None:
        self._record = record
        self.calls: dict[str, int] = {}

    def counted(self, step: str, times: int = 1) -> AbstractContextManager[None]:
        """Count this thread's calls in a block.

        Warm up first: caches that the first step fills are not what every other step costs.

        Args:
            step: an identifier in lower case: trace, lower, dispatch, ...
            times: how often the block does the step; the number is that of one, rounded up.

        Raises ValueError for another ``step``, for one that was counted before, and inside of a
        block that counts or under another profiler.
        """
        if not step.isidentifier() or step != step.lower():
            raise ValueError(f"host work: expected a step in lower case, as trace; found {step!r}")
        if step in self.calls:
            raise ValueError(f"host work: step {step!r} is counted twice in one case")
        if sys.getprofile() is not None:
            raise ValueError(f"host work: step {step!r} can't be counted under another profiler")
        return _Counting(lambda calls: self._keep(step, -(-calls // times)))

    def _keep(self, step: str, calls: int) -> None:
        self.calls[step] = calls
        self._record(step, calls)


class _Counting:
    """The block. It is no generator, whose calls would be counted too."""

    def __init__(self, keep: Callable[[int], None]) -> None:
        self._keep = keep
        self._calls = 0

    def __enter__(self) -> None:
        gc.collect()  # a collection inside would call what frees the garbage of others
        self._collects = gc.isenabled()
        gc.disable()
        sys.setprofile(self._count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        if self._collects:
            gc.enable()
        if error is None:
            self._keep(self._calls - _OWN)

    def _count(self, _frame: FrameType, event: str, _argument: object) -> None:
        self._calls += event in ("call", "c_call")
