"""The plugin looks at Python's stacks in threads of a framework, where no object of a test may die.

TorchTPU ends the process if a tensor dies in one of its own threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lanes.virtual import library

BUILD = Path(library.__file__).with_name("plugin") / "build.py"
THREAD = """\
#include <pthread.h>
#include <stdlib.h>
#include "plugin.h"
static _Atomic int left;
static void *look(void *stacks) {
  for (; left > 0; --left) free(stacks == NULL ? python_site() : python_stacks());
  return NULL;
}
#define EXPORT __attribute__((visibility("default")))
EXPORT void start(int times, int stacks) {
  pthread_t thread;
  left = times;
  python_find();
  pthread_create(&thread, NULL, look, stacks ? &left : NULL);
  pthread_detach(thread);
}
EXPORT int still(void) { return left; }
"""
PROGRAM = """\
import ctypes, gc, sys, threading
import harness.lanes.virtual.process  # as the plugin does when it is loaded
library = ctypes.CDLL(sys.argv[1])
died = []
class Tensor:
    def __del__(self):
        died.append(threading.get_ident())
def work(depth):
    tensor, garbage = Tensor(), Tensor()
    garbage.itself = garbage
    return work(depth - 1) if depth else 0
sys.setswitchinterval(1e-6)
library.start(300, int(sys.argv[2]))
while library.still():
    work(20)
assert gc.isenabled()
assert len(died) > 1000, died
print(sum(ident != threading.get_ident() for ident in died))
"""


@pytest.fixture(scope="module")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    (folder / "thread.c").write_text(THREAD)
    made = folder / "threads.so"
    flags = ["-shared", "-fPIC", f"-I{BUILD.parent}"]
    subprocess.run([sys.executable, BUILD, made, *flags, folder / "thread.c"], check=True)
    return made


@pytest.mark.long
@pytest.mark.parametrize("mode", ["site", "stacks"])
def test_no_object_dies_in_a_thread_that_is_not_pythons(threads: Path, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, threads, str(int(mode == "stacks"))],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
