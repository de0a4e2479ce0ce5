"""Lane ``virtual-tpu``: CPU devices that torch_xla and JAX take for those of a platform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from harness import frameworks
from harness.errors import BadInputError
from harness.lanes.events import Events
from harness.lanes.lane_protocol import Lane
from harness.lanes.virtual import library
from harness.model.topology import Topology, check_slice
from harness.platforms import Platform
from harness.platforms.tpu import TPU


def unless_client(lane: str, process: Events) -> str:
    """Explain that a pass proves nothing about a lane, if the plugin created no client; else ""."""
    return "" if process.of("client") else f"no client of lane {lane} was created in its process"


def requests(events: Events) -> dict[str, str]:
    """Return how often each kind of request reached the plugin."""
    return {
        "clients": str(len(events.of("client"))),
        "discoveries": str(len(events.discoveries)),
        "compilations": str(len(events.of("compile"))),
        "executions": str(len(events.of("execute"))),
    }


class VirtualLane(Lane):
    """torch_xla and JAX as two clients of one virtual TPU, or of another platform's devices."""

    counts_events = True
    compiles_only = False
    runs_cases_of = ""
    needs: tuple[str, ...] = ()
    default_topology = Topology(1, 4)

    def __init__(self, platform: Platform = TPU) -> None:
        self.platform, self.name = platform, f"virtual-{platform.name}"

    def check(self, topology: Topology) -> None:
        check_slice(topology, self.platform)
        if topology.total > library.MOST_DEVICES:
            raise BadInputError(
                f"topology {topology}: expected {library.MOST_DEVICES} devices at most"
            )
        whole = topology.on(self.platform)
        if not whole.is_divisible:
            x, y, z = whole.bounds
            raise BadInputError(
                f"topology {topology}: a slice of {x}x{y}x{z} chips has no whole hosts"
            )

    def missing(self) -> str:
        # Where it is a part of this package, preload says what is wrong with it.
        return "" if library.is_compiled_here() else library.NOT_HERE

    def preload(self) -> None:
        from harness.lanes.virtual import process  # noqa: F401 - once for all cases

        library.load()

    def environment(self, topology: Topology) -> Mapping[str, str | None]:
        return library.environment(topology, self.platform)

    def prepare(self, topology: Topology) -> None:
        from harness.lanes.virtual import process

        library.load()
        process.start()
        frameworks.prepare(self.platform.name, topology.total)

    def settle(self) -> None:
        from harness.lanes.virtual import process

        process.settle()

    def unproven(self, process: Events, case: Events) -> str:
        del case
        return unless_client(self.name, process)

    def facts(self, events: Events) -> Mapping[str, str]:
        """Return counts of the case's requests to the plugin. Kernels only run interpreted here."""
        kernels = Counter(event.kernel for event in events.of("kernel"))
        simulated = sum(event.mode == "tpu" for event in events.of("kernel"))
        faults = Counter(f"{event.fault} {event.kernel}" for event in events.of("fault"))
        options = {event.option for event in events.of("option")}
        rewritten = Counter(event.rewrite for event in events.of("rewrite"))
        return {
            **requests(events),
            "communicators": str(len(events.of("communicator")) or ""),
            "options_left_out": ", ".join(sorted(options)),
            "pallas_interpreted": str(kernels.total() or ""),
            "pallas_tpu_interpreted": str(simulated or ""),
            "pallas_kernels": _listed(kernels),
            "pallas_faults": _listed(faults),
            "rewritten": _listed(rewritten),
            **events.planted,
        }


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
