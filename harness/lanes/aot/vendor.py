"""The compiler of a platform's vendor, which needs no device: what the lane asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from harness.model.topology import Topology
from harness.platforms import Platform, platform_with

if TYPE_CHECKING:
    from harness.lanes.aot.cubin import KernelUse
    from harness.lanes.aot.dump import OnChip
    from harness.lanes.aot.optimized import Optimized


class VendorCompiler(Protocol):
    """Module that loads a vendor's compiler beside the virtual devices of this process."""

    NAME: str
    """Name of the compiler in sentences, such as ``libtpu``."""
    LIBRARY: str
    """Where a folder of packages has it, as a pattern of paths."""
    NEEDS: tuple[str, ...]
    """Packages without which it can't be used; ``a|b`` is either."""
    DEFAULT: str
    """Topology of a case that names none."""
    ENVIRONMENT: Mapping[str, str]
    """Variables that it reads when it is initialised."""
    OPTIONS: Mapping[str, str]
    """XLA's options that each program is compiled with besides its own."""

    def missing(self) -> str:
        """Return why it can't be used in this Python; "" if it can."""
        ...

    def check(self, topology: Topology) -> None:
        """Raise BadInputError for a topology that it can't compile for. Loads nothing."""
        ...

    def preload(self) -> None:
        """Map the library, once for all processes that are forked later; starts no thread.

        Raises BadInputError when something is missing, or of a version that does not fit.
        """
        ...

    def devices(self, topology: Topology) -> Sequence[Any]:
        """Return the devices of a topology to compile for, slice by slice; BadInputError.

        The compiler is ``[0].client``.
        """
        ...

    def described(self, topology: Topology) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options by which the compiler knows a topology."""
        ...

    def memory(self, topology: Topology) -> int:
        """Return the bytes of a device, or 0 if the compiler itself refuses larger programs."""
        ...

    def read(self, module: bytes, topology: Topology) -> Optimized:
        """Return the facts of an optimized program, a serialised HloModuleProto."""
        ...

    def on_chip(self, program: Optimized) -> OnChip | None:
        """Return what the kernels of the program compiled last use; None if it does not say."""
        ...

    def kernel_use(self, executable: Any) -> Mapping[str, KernelUse]:
        """Return what each GPU kernel of a compiled program uses; nothing if it does not say."""
        ...

    def misfit(self) -> str:
        """Return which installed versions may explain a refusal, or ""."""
        ...


def vendor_of(platform: Platform) -> VendorCompiler:
    """Return the compiler that the platform names."""
    vendor: Any = import_module(platform.compiler)
    return vendor  # type: ignore[no-any-return]


def vendor_for(topology: Topology) -> VendorCompiler:
    """Return the compiler of the topology's generation."""
    return vendor_of(platform_with(topology.generation))
