"""What a case leaves to the end of its interpreter happens, and what fails then is shown."""

from __future__ import annotations

import pytest
from support.project import Project

HOOKS = """\
import atexit, concurrent.futures, tempfile, weakref

pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.deadline(20)]
atexit.register(print, f"pytest's own {os.getpid()}")  # the file is imported there
FOLDER = tempfile.TemporaryDirectory(dir=".", prefix="parent-")
weakref.finalize(FOLDER, print, "pytest's finalizer")

def note(text):
    with open("notes", "a") as file:
        print(text, file=file)

@pytest.fixture
def torn_down():
    yield
    note("fixture")

def test_hooks(torn_down):
    atexit.register(note, "first registered")
    atexit.register(note, "last registered")
    threading.Thread(target=lambda: (time.sleep(0.3), note("thread"))).start()
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    weakref.finalize(test_hooks, note, "finalizer")
    concurrent.futures.ThreadPoolExecutor().submit(lambda: (time.sleep(0.2), note("pool")))

def test_folder():
    test_folder.kept = tempfile.TemporaryDirectory(dir=".", prefix="case-")
    assert os.path.isdir(test_folder.kept.name)

def test_raises():
    print("before")
    atexit.register(lambda: 1 / 0)

def test_thread_raises():
    threading.Thread(target=lambda: (time.sleep(0.2), [].pop())).start()

@pytest.mark.filterwarnings("error")
def test_error():
    atexit.register(lambda: 1 / 0)

def test_prints():
    atexit.register(print, "printed at exit")
    atexit.register(sys.stderr.write, "written at exit")

def test_exits():
    atexit.register(os._exit, 3)

@pytest.mark.deadline(2)
def test_hangs():
    threading.Thread(target=time.sleep, args=(60,), name="forgotten").start()

@pytest.mark.share("us")
def test_shared_a():
    atexit.register(note, "shared")

@pytest.mark.share("us")
def test_shared_b():
    assert "shared" not in Path("notes").read_text()

def test_after():
    assert "shared" in Path("notes").read_text()
"""


@pytest.fixture(scope="module")
def shutdown(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("shutdown"))


def test_the_shutdown_of_a_case(shutdown: Project) -> None:
    shutdown.write("test_inner.py", HOOKS)
    ran = shutdown.run("-o", "junit_logging=all")
    failures = {n: ran.properties(n)["failure"] for n, o in ran.outcomes.items() if o != "passed"}
    assert failures.keys() == {"test_error", "test_exits", "test_hangs"}, ran.stdout
    assert ran.outcomes["test_exits"] == "crashed"
    assert failures["test_exits"] == "exited with status 3 before its result"
    assert ran.outcomes["test_hangs"] == "hung"
    assert "ZeroDivisionError" in failures["test_error"]
    notes = (shutdown.path / "notes").read_text().splitlines()
    assert sorted(notes[1:3]) == ["pool", "thread"]
    assert notes[0] == "fixture"
    # atexit's order: the finalizers' hook was registered last.
    assert notes[3:] == ["finalizer", "last registered", "first registered", "shared"]
    assert ran.shows("PytestUnraisableExceptionWarning: Exception ignored in atexit callback")
    assert ran.shows("ZeroDivisionError: division by zero")
    assert ran.shows("PytestUnhandledThreadExceptionWarning: Exception in thread Thread-")
    assert ran.shows("IndexError: pop from empty list")
    assert "printed at exit" in (ran.cases["test_prints"].system_out or "")
    assert "written at exit" in (ran.cases["test_prints"].system_err or "")
    assert ran.stdout.count("pytest's own") == 1
    assert ran.stdout.count("pytest's finalizer") == 1
    assert not [path for path in shutdown.path.iterdir() if path.name.startswith("case-")]
