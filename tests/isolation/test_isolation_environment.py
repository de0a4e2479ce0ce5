"""A case's environment: there before anything starts, and gone with the case."""

from __future__ import annotations

import pytest
from support.project import Project

C_GETENV = """\
pytestmark = pytest.mark.lanes("cpu")

def c_getenv(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name.encode())
"""


@pytest.mark.parametrize("how", ["--isolation=fork", "--isolation=none", "-n1"])
def test_environment_is_the_cases_alone(project: Project, how: str) -> None:
    project.write(
        "test_inner.py",
        C_GETENV
        + """
BEFORE = dict(os.environ)

@pytest.fixture(autouse=True)
def others_are_unharmed():
    mine = {name for name, value in os.environ.items() if BEFORE.get(name) != value}
    assert mine - LANES <= {"XLA_A", "XLA_B", "XLA_FLAGS"}

LANES = {"PJRT_DEVICE", "CPU_NUM_DEVICES", "JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES",
         "PYTEST_CURRENT_TEST", "XLA_HARNESS_EVENTS", "XLA_HARNESS_EVENTS_WRITTEN",
         "XLA_HARNESS_CASE_FOLDER", "XLA_HARNESS_RUN", "XLA_HARNESS_PLATFORM",
         "TORCHINDUCTOR_CACHE_DIR"}

@pytest.mark.environment(XLA_A="outer", XLA_B="outer")
class TestClass:
    @pytest.mark.environment(XLA_A=7, GONE=None)
    def test_set(self):
        assert (os.environ["XLA_A"], c_getenv("XLA_A")) == ("7", b"7")
        assert os.environ["XLA_B"] == "outer"
        assert "GONE" not in os.environ and c_getenv("GONE") is None

def test_unset():
    assert "XLA_A" not in os.environ and c_getenv("XLA_A") is None
    assert (os.environ["GONE"], c_getenv("GONE")) == ("here", b"here")
    assert c_getenv("PJRT_DEVICE") == b"CPU"

@pytest.mark.environment(XLA_FLAGS="--mine=1")
def test_merged():
    assert os.environ["XLA_FLAGS"].split() == ["--theirs=0", "--mine=1"]

@pytest.mark.environment(XLA_FLAGS=None)
def test_removed():
    assert "XLA_FLAGS" not in os.environ

def test_kept():
    assert os.environ["XLA_FLAGS"] == "--theirs=0"
""",
    )
    ran = project.run(how, XLA_FLAGS="--theirs=0", GONE="here")
    assert len(ran.outcomes) == 5
    assert set(ran.outcomes.values()) == {"passed"}, ran.stdout


@pytest.mark.parametrize("how", ["--isolation=fork", "-n1"])
def test_no_case_finds_what_another_compiled(project: Project, how: str) -> None:
    project.write(
        "test_inner.py",
        """
pytestmark = pytest.mark.lanes("cpu")

@pytest.mark.parametrize("number", [1, 2])
def test_x(number):
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    folder.mkdir()
    (folder / "program").write_text("compiled")
""",
    )
    before = project.path / "before"
    ran = project.run(how, TORCHINDUCTOR_CACHE_DIR=str(before))
    assert list(ran.outcomes.values()) == ["passed", "passed"], ran.stdout
    assert not before.exists()


def test_each_topology_sets_its_device_count(project: Project) -> None:
    project.write(
        "test_inner.py",
        C_GETENV + "@pytest.mark.topologies(1, 4, '2x4')\ndef test_x(topology):\n"
        "    assert c_getenv('CPU_NUM_DEVICES') == str(topology.total).encode()",
    )
    ran = project.run("-v")
    assert set(ran.outcomes) == {"test_x[cpu-1]", "test_x", "test_x[cpu-2x4]"}
    assert set(ran.outcomes.values()) == {"passed"}
    assert ran.properties("test_x[cpu-2x4]")["topology"] == "2x4"


@pytest.mark.parametrize(
    ("name", "xdist"),
    [("XLA_IR_DEBUG", ()), ("TF_CPP_VMODULE", ("-n2",)), ("JAX_ENABLE_X64", ())],
)
def test_variables_read_at_import_are_refused(
    project: Project, name: str, xdist: tuple[str, ...]
) -> None:
    project.write(
        "test_inner.py",
        f"@pytest.mark.lanes('cpu')\n@pytest.mark.environment({name}='1')\ndef test_x(): pass",
    )
    ran = project.run(*xdist)
    assert ran.code == 2
    assert ran.shows(f"test_inner.py::test_x[cpu-4]: environment({name}=...) has no effect")
    assert not ran.cases


@pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])
def test_a_thread_from_collection_is_named(project: Project, xdist: tuple[str, ...]) -> None:
    project.write(
        "test_inner.py",
        "threading.Thread(target=time.sleep, args=(9,), name='culprit', daemon=True).start()\n"
        "pytestmark = pytest.mark.lanes('cpu')\ndef test_x(): pass\ndef test_y(): pass",
    )
    ran = project.run(*xdist)
    assert ran.code == 2
    assert ran.shows("has started threads, so a case can't be forked from it: culprit.")
    assert "passed" not in ran.outcomes.values()


def test_a_native_thread_is_named_by_its_own_name(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
def body():
    ctypes.CDLL(None).prctl(15, b"pool-worker", 0, 0, 0)  # PR_SET_NAME
    time.sleep(9)

import _thread
_thread.start_new_thread(body, ())
time.sleep(0.1)

@pytest.mark.lanes("cpu")
def test_x(): pass
""",
    )
    ran = project.run()
    assert ran.code == 2
    assert ran.shows("can't be forked from it: pool-worker.")


def test_a_thread_in_a_case_is_no_harm_to_the_next(project: Project) -> None:
    project.write(
        "test_inner.py",
        "pytestmark = pytest.mark.lanes('cpu')\n"
        "def test_x(): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def test_y(): assert threading.active_count() == 1",
    )
    assert set(project.run().outcomes.values()) == {"passed"}


def test_modules_are_preloaded_before_the_first_fork(project: Project) -> None:
    body = """\
        import gc
        @pytest.mark.lanes('cpu')
        def test_x():
            assert 'sched' in sys.modules, sys.modules
            assert gc.isenabled()  # again, after they were imported
    """
    project.write("test_inner.py", body)
    ran = project.run("-o", "xla_preload=sched no_such_module?")
    assert ran.outcomes == {"test_x": "passed"}
    assert ran.code == 0


USES = {
    "by a test": "def test_x(): assert HAS_JAX\ndef test_y(): import jax",
    "by a conftest.py": "def test_x(): assert HAS_JAX",
    "by another file": "import helper\ndef test_x(): assert HAS_JAX",
    "not used": "def test_x(): assert not HAS_JAX",
}


@pytest.mark.parametrize("lane", [(), ("--lane=cpu",)], ids=["cases", "unmodified"])
@pytest.mark.parametrize("use", USES)
def test_what_the_tests_use_is_preloaded(project: Project, use: str, lane: tuple[str, ...]) -> None:
    """And what they do not use is not: torch_xla takes ten times as long as JAX."""
    project.write("pytest.ini", "[pytest]\n")
    project.write("helper.py", "import jax")
    project.write("conftest.py", "import helper" if use == "by a conftest.py" else "")
    # A file of cases is imported once, before the modules; an unmodified one in each process.
    has = "'ja' 'x' in sys.modules"
    body = USES[use].replace("HAS_JAX", "BEGAN" if lane else has)
    mark = "" if lane else "pytestmark = pytest.mark.lanes('cpu')\n"
    project.write("test_inner.py", f"{mark}BEGAN = {has}\n{body}")
    ran = project.run(*lane)
    assert set(ran.outcomes.values()) == {"passed"}, ran.stdout


def test_no_garbage_is_looked_for_while_files_are_collected(project: Project) -> None:
    project.write(
        "test_cases.py",
        """\
        import gc
        AT_IMPORT = gc.isenabled()
        @pytest.mark.lanes('cpu')
        def test_x():
            assert (AT_IMPORT, gc.isenabled()) == (False, True)
            assert gc.get_freeze_count()
        """,
    )
    project.write(
        "test_plain.py",
        "import gc\n"
        "AT_IMPORT = gc.isenabled()\n"
        "def test_y(): assert (AT_IMPORT, gc.isenabled()) == (True, True)",
    )
    ran = project.run("--lane=cpu")
    assert ran.outcomes == {"test_x": "passed", "test_y": "passed"}, ran.stdout


def test_a_missing_module_to_preload_is_named(project: Project) -> None:
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_x(): pass")
    ran = project.run("-o", "xla_preload=json no_such_module")
    assert ran.code == 2
    assert ran.shows("xla_preload: no_such_module can't be imported")


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}], ids=["", "given"])
def test_threads_of_openmp_do_not_wait_in_a_loop(project: Project, given: dict[str, str]) -> None:
    """Unless the user wants them to; as the OpenMP that torch brings has read it."""
    project.write("test_inner.py", "@pytest.mark.lanes('cpu')\ndef test_x(): import torch\n")
    ran = project.run("-s", OMP_DISPLAY_ENV="VERBOSE", **given)
    assert ran.outcomes == {"test_x": "passed"}
    assert ("GOMP_SPINCOUNT = '0'" in ran.stderr) == (not given), ran.stderr
