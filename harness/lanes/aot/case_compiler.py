"""The fixture ``xla_compiler``, with which cases of lanes that only compile do so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.lanes import events
from harness.lanes.aot import compiler
from harness.lanes.aot.compilation_record import (
    EVENT,
    LEFT,
    REFUSED,
    STAND_IN,
    Summary,
    summary,
)
from harness.lanes.aot.compiler import Compilation, identity
from harness.lanes.aot.golden import Golden
from harness.lanes.aot.results import check_results, is_comparable
from harness.lanes.aot.vendor import vendor_for
from harness.lanes.events import EventLog
from harness.lanes.virtual.kept_programs import keeping, kept_in, not_kept
from harness.lanes.virtual.submitted import Submitted, submissions
from harness.model.case import Case
from harness.model.mismatch import CompilationError
from harness.model.topology import Topology


class CaseCompiler:
    """Compiler for the case's topology; everything that it compiles is recorded."""

    def __init__(self, case: Case, golden: Golden | None) -> None:
        self._case, self._golden = case, golden
        self._programs: list[Summary] = []

    @property
    def topology(self) -> Topology:
        """The topology that programs are compiled for."""
        return self._case.target.topology

    @property
    def devices(self) -> Sequence[Any]:
        """The topology's devices, for a JAX mesh; nothing can be put on them."""
        return vendor_for(self.topology).devices(self.topology)

    def step(self, *outputs: Any) -> Compilation:
        """Compile the program that torch_xla would run now to compute lazy tensors; don't run it.

        In SPMD mode it is one for all devices, or else that of one replica. Raises RefusedError.
        """
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        return self.program(xm.get_stablehlo_bytecode(list(outputs)), partitions=xr.is_spmd())

    def program(self, stablehlo: bytes, *, partitions: bool = False) -> Compilation:
        """Compile torch_xla's exported program, of a replica or all partitions; RefusedError."""
        with _refusals_recorded():
            compiled = compiler.compile_stablehlo(stablehlo, self.topology, partitions=partitions)
        return self._record(compiled)

    def submitted(self, program: Submitted) -> Compilation:
        """Compile a program as a process submitted it on the virtual devices; RefusedError.

        Call it only after the last process is forked: the compiler starts threads here.
        """
        with _refusals_recorded():
            compiled = compiler.compile_submitted(program, self.topology)
        return self._record(compiled)

    def jax(self, fn: Callable[..., Any], *arguments: Any) -> Compilation:
        """``fn`` of abstract arguments, whose shardings name ``devices``, by JAX; RefusedError."""
        import jax

        with _refusals_recorded():
            compiled = compiler.compile_jax(jax.jit(fn).lower(*arguments), self.topology)
        return self._record(compiled)

    def compare(self) -> None:
        """Raise CompilationError unless the programs are the golden file's of this case."""
        if self._golden is None or not self._programs:
            return
        case, target = self._case, self._case.target
        file = self._golden.file_of(case.area, case.id, target.framework, target.lane)
        difference = file.difference(self._case.id, self._programs)
        if difference:
            raise CompilationError(difference)

    def _record(self, compilation: Compilation) -> Compilation:
        program = summary(compilation)
        self._programs.append(program)
        events.write(EVENT, program)
        return compilation


class NotComputedError(Exception):
    """A test needs numbers of a program that is compiled, and that nothing here can run."""

    def __init__(self, failure: str, why: str) -> None:
        super().__init__(f"zeros stood for results that can't be computed here: {failure}\n{why}")


def _first_line(error: Exception) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def compiling_what_is_submitted(compiler: CaseCompiler) -> Iterator[None]:
    """Compile each program that the test submits within it, at the end if nothing failed.

    That is this process, and those that it starts. What is the same to the compiler is compiled
    once: a test of gradients by differences traces one function hundreds of times. What the virtual
    devices can't run is compiled as well, and returns zeros. Raises RefusedError at the first that
    is refused, CompilationError at the first whose results have other dimensions than here, and
    NotComputedError if the test fails after such zeros. Processes of which programs are missing are
    noted.
    """
    log, own = EventLog(Path(os.environ[events.VARIABLE])), os.getpid()
    with keeping() as folder, submissions(is_comparable) as programs:

        def compile_all() -> None:
            kept = kept_in(folder)
            compiling = [e.process for e in log.read().of("compile") if e.process != own]
            if missing := not_kept(kept, compiling):
                events.write(LEFT, {"processes": missing})
            elsewhere = [
                (program.program, program.compiled_here if is_comparable(program.program) else b"")
                for program in kept
            ]
            _compile_each(compiler, _distinct([*programs, *elsewhere]))

        before = log.read()
        try:
            yield
        except Exception as error:
            # What has failed may be the fault of results that nobody has computed.
            stand_ins = log.read().after(before).of(STAND_IN)
            if not stand_ins:
                raise
            compile_all()
            raise NotComputedError(_first_line(error), stand_ins[0].stack or "") from error
        compile_all()


def _compile_each(compiler: CaseCompiler, programs: Sequence[tuple[Submitted, bytes]]) -> None:
    for program, compiled_here in programs:
        compiled = compiler.submitted(program).program
        if compiled_here:
            check_results(program, compiled.results, compiled_here)


def _distinct(programs: Sequence[tuple[Submitted, bytes]]) -> list[tuple[Submitted, bytes]]:
    """Return the programs without those that are the same to the compiler as an earlier one."""
    first: dict[object, tuple[Submitted, bytes]] = {}
    for program, compiled_here in programs:
        first.setdefault(identity(program), (program, compiled_here))
    return [*first.values()]


@contextmanager
def _refusals_recorded() -> Iterator[None]:
    """Record that a program was not compiled: a case may expect that, and it is evidence too."""
    try:
        yield
    except Exception as refused:  # JAX, too, refuses what no device could run, when it lowers it
        events.write(REFUSED, {"error": type(refused).__name__})
        raise
