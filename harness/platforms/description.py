"""Description of a kind of device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from math import isqrt
from typing import Any, Protocol

from packaging.version import Version

from harness.errors import BadInputError

Bounds = tuple[int, int, int]  # along x, y and z


class JobLayout(Protocol):
    """Layout of a job: how processes divide its chips. A topology is one."""

    @property
    def slices(self) -> int:
        """The number of slices."""
        ...

    @property
    def processes(self) -> str:
        """The unit that has a process of its own; "" if one process has all slices."""
        ...

    @property
    def bounds(self) -> Bounds:
        """The chips of a slice."""
        ...

    @property
    def host_bounds(self) -> Bounds:
        """The chips of one host in a slice."""
        ...

    @property
    def process_count(self) -> int:
        """The processes of the whole job."""
        ...


@dataclass(frozen=True)
class Generation:
    """Generation of a platform's devices, as the vendor's runtime describes it.

    A chip is so many ``devices``, each of so many ``cores``.
    """

    name: str
    device_kind: str
    accelerator: str = ""  # the first part of an accelerator type such as ``v6e-8``
    cores: int = 1
    devices: int = 1
    counts_cores: bool = False  # an accelerator type counts cores, and not chips
    torus: int = 2  # dimensions of a slice's grid of chips
    grids: tuple[str, ...] = ()  # the slices that are offered; empty for any
    gke: str = ""  # the value of GKE's node label for the accelerator
    host_chips: int = 4  # of a slice of several hosts
    memory: int = 1  # GiB of a chip
    pci: int = 0  # the device id of a chip, by which frameworks find it
    other_names: tuple[str, ...] = ()
    capability: str = ""  # the vendor's number for what its chips can do, as CUDA's ``9.0``
    words: Mapping[str, str] = field(default_factory=dict)  # of its users for chip, host, slice

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names by which a topology may call it."""
        return self.name, *self.other_names

    def accelerator_type(self, chips: int) -> str:
        """``v6e-8`` for a slice of 8 chips."""
        return f"{self.accelerator}-{chips * self._counted_of_a_chip}"

    def chips(self, counted: int) -> int:
        """Return the chips of a slice whose accelerator type ends with that number."""
        return counted // self._counted_of_a_chip

    @property
    def device_memory(self) -> int:
        """Return the memory of one device in GiB."""
        return self.memory // self.devices

    @property
    def _counted_of_a_chip(self) -> int:
        return self.cores * self.devices if self.counts_cores else 1

    def hosts(self, chips: int, on_host: int = 0) -> int:
        """Return the hosts of a slice of ``chips``, with ``on_host`` each (0: the generation's).

        Raises ValueError when they are no whole number of hosts.
        """
        each = on_host or min(chips, self.host_chips)
        if chips % each:
            raise ValueError(f"{chips} chips are no whole number of hosts of {each}")
        return chips // each

    def bounds(self, chips: int) -> Bounds:
        """Chips of a slice along x, y and z; a line where ``chips`` forms no rectangle."""
        if self.torus == 1:
            return chips, 1, 1
        if self.torus == 3 and chips % 4 == 0:
            return 2, 2, chips // 4
        x = next(side for side in range(isqrt(chips), 0, -1) if chips % side == 0)
        return x, chips // x, 1

    def host_bounds(self, bounds: Bounds) -> Bounds:
        """Return the chips of a host in a slice of these bounds: a square on a grid, as 2x2."""
        if self.torus == 1:
            return min(bounds[0], self.host_chips), 1, 1
        return min(bounds[0], 2), min(bounds[1], 2), 1

    def grid(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Return a slice's grid; ``size`` is its number of chips, ``(4,)``, or a grid, ``(2, 2)``.

        Raises ValueError when it has not as many dimensions as the generation's torus.
        """
        if len(size) == 1:
            return self.bounds(*size)[: self.torus]
        if len(size) != self.torus:
            example = "x".join(map(str, self.bounds(4)[: self.torus]))
            raise ValueError(
                f"{self.name} is a torus of {self.torus} dimensions: expected chips as {example}"
            )
        return size


@dataclass(frozen=True)
class LaunchVariables:
    """Names of the variables in which launchers tell a process its place in a job.

    The plugin is told them in this order, up to ``arguments``. "" is a variable that no launcher of
    the platform has.

    Attributes:
        slices: how many slices the job has.
        slice: this process's own slice, from 0.
        coordinator: HOST:PORT where the slices discover each other; unset where one process has
            them all.
        no_discovery: ``true`` if a client must not wait for the other slices.
        process_bounds: the processes of a slice along x, y and z.
        chips_per_process: the chips of a process along x, y and z.
        process: this process within its slice, from 0.
        visible_chips: the numbers of this process's chips.
        arguments: flags of the vendor's runtime.
        worker: this host within its slice, from 0.
        hostnames: the hosts of the slice.
    """

    slices: str = ""
    slice: str = ""
    coordinator: str = ""
    no_discovery: str = ""
    process_bounds: str = ""
    chips_per_process: str = ""
    process: str = ""
    visible_chips: str = ""
    arguments: str = ""
    worker: str = ""
    hostnames: str = ""


@dataclass(frozen=True)
class Hardware:
    """How a machine's real devices of a platform are found, and what frameworks reach them by.

    Attributes:
        topology: return what is here as a topology is written, ``v6e:2x2``; raises BadInputError,
            with what was expected, where nothing is.
        library: return the path of the vendor's PJRT plugin; raises BadInputError without it.
        needs: the packages without which a stack can use it.
        frameworks: those that reach the devices; none for all of the platform's.
        environment: what a process reads besides, given the path of the plugin that counts, and how
            many devices it has; None unsets.
        facts: return what a record says of the devices and of what drives them.
        divides: whether a process may have fewer devices than there are here.
        on_import: what makes frameworks load that plugin, by the module that it is called with once
            that is imported.
    """

    topology: Callable[[], str]
    library: Callable[[], str]
    needs: tuple[str, ...]
    environment: Callable[[str, int], Mapping[str, str | None]]
    facts: Callable[[], Mapping[str, str]] = dict
    divides: bool = False
    frameworks: tuple[str, ...] = ()
    on_import: Mapping[str, Callable[[Any], None]] = field(default_factory=dict)


def _nothing(*_: object) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Platform:
    """A kind of device: what it is called, what frameworks read, and what its launchers say.

    Attributes:
        name: as options and frameworks name it, such as ``tpu``; its lane is ``virtual-tpu``.
        title: as sentences name it, such as ``TPU``.
        default: the generation of a topology that names none; its chips are one device each.
        generations: all that there are.
        pjrt_name: what the plugin answers when it is asked for the name of its platform.
        device: what ``str`` says of a device, with {id}, {process}, {slice}, {x}, {y}, {z}, {core}
            and {index}, its number among the devices of its process.
        attributes: a device's attributes on a generation and so many slices, with the same numbers:
            ``{x},{y}`` and ``{index},`` are lists, ``{core}`` a number, and anything else text.
        frameworks: what makes each framework use it: JAX_PLATFORMS, PJRT_DEVICE. A framework of
            ours that is not there does not know the platform.
        last: the last release of a framework that has the platform, where there is one.
        loading: the variables that make frameworks load the plugin, with its path as ``{plugin}``.
        launch: the names of its launchers' variables.
        clients_say_place: whether a framework itself tells each client the place of its process in
            a job, which is on one host; the variables of ``launch`` do not.
        version: what the runtime says of itself, on a generation and so many slices.
        device_repr: what ``repr`` says of a device, with the same numbers; "" if that is the same.
        compiler: the module with its vendor's compiler, for lane ``NAME-aot``; "" if there is none.
        compiler_name: what sentences call that compiler, such as ``libtpu``.
        environment: what a process reads besides, on a generation with a layout; None unsets.
        contradiction: describe what of this machine, or of the variables that its user has set,
            contradicts virtual devices of that layout; "" if nothing does.
        process_environment: what process ``number`` of a layout reads besides, given an address for
            each process.
        on_import: what makes frameworks find the devices, by the module that it is called with once
            that is imported.
        hardware: real devices, if there is a lane for them.
        packages: the distributions of the vendor's plugin, which belong to no framework:
            torch_xla and JAX both load it.
        calls_python: whether the vendor's compiler calls Python while it partitions, as
            ``custom_partitioning`` needs.
        calls_libraries: modules of JAX whose primitives are lowered to calls of the vendor's
            libraries, each with the option without which they are not, or "". A virtual device has
            no such libraries: they are lowered as for a CPU.
    """

    name: str
    title: str
    default: str
    generations: tuple[Generation, ...]
    pjrt_name: str
    device: str
    attributes: Callable[[Generation, int], Mapping[str, str]]
    frameworks: Mapping[str, str]
    loading: Mapping[str, str]
    launch: LaunchVariables
    version: Callable[[Generation, int], str]
    device_repr: str = ""
    compiler: str = ""
    compiler_name: str = ""
    environment: Callable[[Generation, JobLayout], Mapping[str, str | None]] = _nothing
    contradiction: Callable[[JobLayout, Mapping[str, str]], str] = lambda *_: ""
    process_environment: Callable[[JobLayout, int, Sequence[str]], Mapping[str, str]] = _nothing
    on_import: Mapping[str, Callable[[Any], None]] | None = None
    clients_say_place: bool = False
    hardware: Hardware | None = None
    packages: tuple[str, ...] = ()
    calls_python: bool = False
    calls_libraries: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)

    def generation(self, name: str) -> Generation:
        """Return the generation of that name, or the default one for ""; raises BadInputError."""
        return generation_among(self.generations, name or self.default)

    def ended(self, framework: str, *, is_real: bool = False) -> str:
        """Return why the framework's installed release lacks this platform; "" if it has it.

        ``is_real`` asks for the hardware's devices.
        """
        reaching = self.hardware.frameworks if is_real and self.hardware else ()
        if reaching and framework not in reaching:
            return f"only {', '.join(reaching)} has a plugin for a real {self.title} here"
        last = self.last.get(framework)
        release = metadata.version(framework) if last else ""
        if last and Version(release).release[:2] > Version(last).release:
            return f"{release} has no {self.title}: the last release with it is {last}"
        return ""


def generation_among(generations: Sequence[Generation], name: str) -> Generation:
    """Return the generation of that name; raises BadInputError, with near matches."""
    for generation in generations:
        if name in generation.names:
            return generation
    names = [generation.name for generation in generations]
    near = get_close_matches(name, names, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise BadInputError(f"generation {name!r}: expected one of {', '.join(names)}{hint}")
