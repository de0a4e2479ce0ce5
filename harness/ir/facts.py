"""Facts about a program that a test may check: its signature and its collectives."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.model.mismatch import MismatchError

Group = tuple[int, ...]


@dataclass(frozen=True)
class TensorType:
    """A ranked tensor: `shape` in elements, `dtype` in MLIR's spelling (`f32`, `i1`)."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype])


@dataclass(frozen=True)
class Collective:
    """Cross-replica operation, as https://openxla.org/stablehlo/spec defines it.

    `kind` is the operation without its dialect (`all_reduce`). `reducer` is the one operation of
    its reduction region (`add`, `maximum`), `None` without a region, and `"other"` when the region
    is anything but a single operation on its two arguments. `groups` are the replica groups without
    the padding that uneven groups carry; no groups mean one group of all replicas. `pairs` are the
    source and target replicas of a permutation. `dimensions` are the operation's dimension
    attributes: `(gather,)`, `(scatter,)` or `(split, concat)`. `split_count` belongs to all_to_all.
    """

    kind: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    reducer: str | None = None
    groups: tuple[Group, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    dimensions: tuple[int, ...] = ()
    split_count: int | None = None


@dataclass(frozen=True)
class Program:
    """A verified module: its entry function's signature and its collectives in program order.

    Two programs are equal when these are. `text` is MLIR's printing; `artifact` is the module as a
    portable StableHLO artifact of jaxlib's own version, for jaxlib to compile.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    collectives: tuple[Collective, ...]
    text: str = field(repr=False, compare=False)
    artifact: bytes = field(repr=False, compare=False)

    def only(self, kind: str) -> Collective:
        """Return the program's single collective, which must be of this kind.

        Raises:
            MismatchError: there is none, there are several, or it is of another kind.
        """
        kinds = [collective.kind for collective in self.collectives]
        if kinds != [kind]:
            raise MismatchError(f"collectives: expected one {kind}, got {kinds or 'none'}")
        return self.collectives[0]
