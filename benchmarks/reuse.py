"""What reusing results saves the second time, and what keeping them costs the first time.

Runs files of the suites four times on the virtual TPU: without a store, with an empty one, again,
and again after one test file was edited, which is restored. Then it draws slips over the modules of
JAX, torch_xla and the suites, and counts which cases would have run after each: all that have
executed a line of the changed file must be among them. A profiler, which shares no code with what
records the files, says which cases those are.
Usage: ``uv run benchmarks/reuse.py [pytest arguments]``. With ``--seen STORE JSON ...`` it only
reads a store and measurements, and says whether each case that sees a slip would have run after it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from harness.reuse.digests import Digests
from harness.reuse.result_store import ResultStore
from harness.sensitivity.python_faults import PYTHON_OPERATORS
from harness.sensitivity.sample import Sample
from harness.sensitivity.whole_modules import read_modules, sampled

FILES = ("suites/collectives", "suites/dtensor")
EDITED = Path("suites/dtensor/test_redistribute.py")
PACKAGES = ("jax", "torch_xla", "suites")
SLIPS = 501
# In each process of a case: append the path of each file of which a function is called.
PROFILER = """\
import os, sys, threading
import pytest
PID, FOLDER = os.getpid(), os.environ["PROFILED_FILES"]

class _Profiler:
    def __init__(self, name):
        self.known, self.file = set(), open(os.path.join(FOLDER, name), "a", buffering=1)
    def __call__(self, frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path not in self.known:
            self.known.add(path)
            self.file.write(path + "\\n")

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    if os.getpid() == PID:
        return (yield)
    import hashlib
    profiler = _Profiler(hashlib.sha256(item.nodeid.encode()).hexdigest())
    profiler.file.write(item.nodeid + "\\n")
    threading.setprofile(profiler)
    sys.setprofile(profiler)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
"""


def main() -> None:
    """Measure and print."""
    sys.path[0] = str(Path.cwd())  # not this folder, which has a module of the name of a package
    if sys.argv[1:2] == ["--seen"]:
        store, *measured = map(Path, sys.argv[2:])
        seen_slips(store, measured)
        return
    given = sys.argv[1:] or FILES
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        store = Path(folder, "store")
        reuse = f"--reuse={store}"
        without = run(*given)
        first = run(*given, reuse)
        shown("without a store", without, without)
        shown("with an empty store", first, without)
        shown("again", run(*given, reuse), without)
        text = EDITED.read_text()
        try:
            EDITED.write_text(f"{text}# edited\n")
            shown("after an edit", run(*given, reuse), without)
        finally:
            EDITED.write_text(text)
        profiled = Path(folder, "profiled")
        profiled.mkdir()
        Path(folder, "profiler_of_files.py").write_text(PROFILER)
        variables = {"PROFILED_FILES": str(profiled), "PYTHONPATH": folder}
        run(*given, "-p", "profiler_of_files", f"--reuse={folder}/profiled-store", **variables)
        honesty(Path(folder, "profiled-store"), profiled)


def run(*arguments: str, **environment: str) -> tuple[float, float, str]:
    """Return the seconds of a run, its processor time and the line about reuse."""
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--lane=virtual-tpu", *arguments]
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(
        command, env=os.environ | environment, check=False, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    after = os.times()
    processor = after.children_user - before.children_user
    processor += after.children_system - before.children_system
    lines = [
        line for line in done.stdout.splitlines() if re.search(r"reuse|ran again|each time", line)
    ]
    return time.perf_counter() - start, processor, "; ".join(lines)


def shown(name: str, measured: tuple[float, float, str], base: tuple[float, float, str]) -> None:
    """Print a row, with its ratio of processor time to the run without a store."""
    wall, processor, text = measured
    ratio = processor / base[1]
    print(f"{name:<20} {wall:6.1f} s, processor {processor:6.1f} s, ratio {ratio:.2f}  {text}")


def honesty(store: Path, profiled: Path) -> None:
    """Compare the files on which each case depends with those of which it called a function."""
    digests = Digests(Path.cwd())
    depends = dependencies(ResultStore(store), store)
    missed = pairs = 0
    for file in profiled.iterdir():
        case, *paths = file.read_text().splitlines()
        if case not in depends:
            continue
        for name in {
            digests.name_of(str(Path(path).resolve())) for path in paths if path[0] == "/"
        }:
            if (
                name
                and Path(name.removeprefix("site:")).suffix == ".py"
                and "profiler_of" not in name
            ):
                pairs += 1
                if name not in depends[case]:
                    missed += 1
                    print(f"missed: {case} called a function of {name}")
    print(
        f"{len(depends)} cases called functions of files {pairs} times; {missed} are not recorded"
    )
    shares = defaultdict(list)
    for package, module in slips():
        name = file_of(module, digests)
        ran = sum(name in names for names in depends.values())
        shares[package].append(ran / len(depends))
    for package, each in shares.items():
        print(f"{len(each)} slips in {package}: {sum(each) / len(each):.0%} of the cases run again")


def seen_slips(store: Path, measured: Iterable[Path]) -> None:
    """Compare the cases that see a slip with those that would run after it.

    ``measured`` are what ``xla-harness sensitivity ... --modules FILE --json JSON`` wrote of the
    same cases. A case of which nothing is kept runs each time.
    """
    depends, digests = dependencies(ResultStore(store), store), Digests(Path.cwd())
    counts, shares = Counter[str](), []
    for path in measured:
        for fault in json.loads(path.read_text())["faults"]:
            module = fault["program"].partition(":")[0]
            name = file_of(module, digests)
            shares.append(sum(name in names for names in depends.values()) / len(depends))
            if fault["verdict"] != "seen":
                continue
            case = fault["case"]
            counts["seen"] += 1
            if case not in depends:
                counts["measured each time"] += 1
            elif name not in depends[case]:
                counts["missed"] += 1
                print(f"missed: {case} sees a slip in {name}")
    print(
        f"{counts['seen']} slips are seen, {counts['measured each time']} by cases that run each "
        f"time; {counts['missed']} by cases that would not run"
    )
    print(f"after a slip {sum(shares) / len(shares):.0%} of {len(depends)} cases run, on average")


@cache
def file_of(module: str, digests: Digests) -> str:
    """Return the name under which a store has a module's file."""
    specification = importlib.util.find_spec(module)
    assert specification is not None
    return digests.name_of(str(Path(str(specification.origin)).resolve()))


def dependencies(store: ResultStore, folder: Path) -> dict[str, set[str]]:
    """Return the names of the files on which each kept case depends."""
    by_case = {}
    for path in (folder / "1" / "cases").rglob("*"):
        if path.is_file():
            record = store.read("cases", path.name)
            sets = [store.read("sets", name) for name in record["sets"]]
            names = set().union(record["own"], *sets)
            by_case[record["reports"][-1]["nodeid"]] = names
    return by_case


def slips() -> list[tuple[str, str]]:
    """Draw slips; return the package and the module of each."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(Path("fixtures/modules.toml").read_text() + 'suites = ["suites.*"]\n')
        file.flush()
        return [
            (package, slip.module)
            for package in PACKAGES
            for slip in sampled(
                read_modules(Path(file.name), [package]),
                list(PYTHON_OPERATORS),
                Sample(seed=1, most=SLIPS // len(PACKAGES)),
            )
        ]


if __name__ == "__main__":
    main()
