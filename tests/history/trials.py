"""One command, over and over: each time another call that reads or writes its folder fails.

Started by ``test_history_faults.py`` with ``failing_calls.c`` preloaded. Everything is imported
once; each trial is a fork. Prints a line of JSON a trial: what the command said, and again without
a fault. Usage: trials.py STATE TEMPLATE FOLDER STEP ARGUMENT...
"""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import pkgutil
import shutil
import struct
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import duckdb  # noqa: F401 - before the first fork, as all that the commands import
import pyarrow.parquet as pq  # noqa: F401

from harness import cli, commands
from harness.history.format import check_bytes
from harness.history.storage import Folder

FIRST = 10  # calls, each of which fails once, whatever the step
MOST = 2000  # calls; no command makes as many
ERRORS = (errno.EIO, errno.ENOSPC)


def main(state: Path, template: Path, folder: Path, step: int, line: list[str]) -> None:
    """Try the command without a fault, then with each until there is no such call any more."""
    for module in pkgutil.iter_modules(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    with state.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 32)
    for number in (*range(FIRST), *range(FIRST, MOST, step)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        shared[:] = struct.pack("4q", 0, number, number, ERRORS[number % 2])
        first = forked(folder, line)
        calls, *_ = struct.unpack("4q", shared[:])
        shared[:] = bytes(32)
        if number and calls < number:
            return
        first |= {"whole": whole(folder)}
        again = {**forked(folder, line), "whole": whole(folder)} if first["code"] else first
        sys.stdout.write(json.dumps({"number": number, **first, "again": again}) + "\n")


def forked(folder: Path, line: list[str]) -> dict[str, Any]:
    """What the command says in a process of its own."""
    out, err = (folder.with_suffix(f".{name}") for name in ("out", "err"))
    child = os.fork()
    if child == 0:
        code = 70
        try:
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            code = cli.main(line)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "out": out.read_text(), "err": err.read_text()}


def whole(folder: Path) -> list[str]:
    """The runs in the history and on the branch; raises for one that is not whole."""
    files = Folder(folder / "history")
    places = files.listed().places
    for place in places:
        check_bytes(place, files.read(place.name))
    names = [place.run for place in places]
    remote = folder / "remote.git"
    for command in (["fsck", "--strict"], ["ls-tree", "-r", "--name-only", "history"]):
        git = subprocess.run(["git", *command], cwd=remote, check=True, capture_output=True)
    return names + [Path(name).name for name in git.stdout.decode().split()]


if __name__ == "__main__":
    paths = [Path(each) for each in sys.argv[1:4]]
    main(paths[0], paths[1], paths[2], int(sys.argv[4]), sys.argv[5:])
