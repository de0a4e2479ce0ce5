"""Unmodified test files: imported by forked processes only, and run like a case of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.project import Project, Ran

xdist = pytest.mark.parametrize("xdist", [(), ("-n2",)], ids=["alone", "xdist"])

# What torch_xla's own files do: ask the runtime at import, switch to SPMD under __main__.
ASKS_AT_IMPORT = """
import torch, torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

class TestX(unittest.TestCase):
    @unittest.skipIf(xr.global_runtime_device_count() < 3, "needs 3 devices")
    def test_many(self):
        self.assertEqual(xr.global_runtime_device_count(), 3)

    @unittest.skipIf(xr.device_type() != "TPU", "needs a TPU")
    def test_tpu(self):
        self.assertEqual(os.environ["PJRT_DEVICE"], "TPU")

    def test_sharded(self):
        mesh = xs.get_global_mesh()
        x = torch.arange(6.0).to("xla")
        sharded = xs.mark_sharding(x, mesh, ("x",))
        self.assertEqual([s.data.numel() for s in sharded.local_shards], [2, 2, 2])
        self.assertEqual((x * 2).cpu().tolist(), [0, 2, 4, 6, 8, 10])

if __name__ == "__main__":
    xr.use_spmd()
    xs.set_global_mesh(xs.get_1d_mesh("x"))
    test = unittest.main()
    sys.exit(0 if test.result.wasSuccessful() else 1)
"""


@pytest.fixture
def preloaded(tmp_path: Path) -> Project:
    """A project whose processes share one import of torch_xla, as they do by default."""
    return Project(tmp_path, preload="torch torch_xla")


@pytest.mark.long
@pytest.mark.parametrize(
    ("lane", "xdist"), [("cpu", ("-n2",)), ("virtual-tpu", ())], ids=["cpu-xdist", "virtual-tpu"]
)
def test_a_file_that_asks_the_runtime_at_import(
    preloaded: Project, lane: str, xdist: tuple[str, ...]
) -> None:
    preloaded.write("test_inner.py", ASKS_AT_IMPORT)
    ran = preloaded.run("--lane", lane, "--topology=3", *xdist)
    assert ran.outcomes == {
        "test_many": "passed",
        "test_tpu": "skipped" if lane == "cpu" else "passed",
        "test_sharded": "passed",
    }
    assert ran.code == 0
    properties = ran.properties("test_sharded")
    assert (properties["lane"], properties["topology"]) == (lane, "3")


def test_the_import_sees_the_topology(preloaded: Project) -> None:
    preloaded.write("test_inner.py", ASKS_AT_IMPORT)
    ran = preloaded.run("--lane=cpu", "--topology=2", "-k", "many")
    assert ran.outcomes == {"test_many": "skipped"}
    assert ran.shows("needs 3 devices")


def test_without_a_lane_it_is_pytest_alone(project: Project) -> None:
    project.write("test_inner.py", "PID = os.getpid()\ndef test_x(): print(PID == os.getpid())")
    project.write("conftest.py", "@pytest.fixture(autouse=True)\ndef pid(): print(os.getpid())")
    ran = project.run("-s")
    assert ran.outcomes == {"test_x": ""}


KINDS = """
from absl.testing import parameterized

@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("inner", ["a", "b::c"])
def test_nested(outer, inner): pass

class TestPlain:
    @pytest.mark.slow
    def test_x(self): pass
    class TestInner:
        def test_x(self): assert 6 * 7 == 41

class TestAbsl(parameterized.TestCase):
    @parameterized.named_parameters(("one", 1), ("two", 2))
    def test_named(self, n): self.assertGreater(n, 1)
    @parameterized.parameters(3, 4)
    def test_numbered(self, n): pass

class TestSubtests(unittest.TestCase):
    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
"""
KINDS_IDS = {
    "test_nested[a-1]": "passed",
    "test_nested[a-2]": "passed",
    "test_nested[b::c-1]": "passed",
    "test_nested[b::c-2]": "passed",
    "TestPlain::test_x": "passed",
    "TestPlain::TestInner::test_x": "failed",
    "TestAbsl::test_named_one": "failed",
    "TestAbsl::test_named_two": "passed",
    "TestAbsl::test_numbered0": "passed",
    "TestAbsl::test_numbered1": "passed",
    "TestSubtests::test_subtests": "failed",
}


def by_id(ran: Ran) -> dict[str, str]:
    """Outcomes by the id below the file."""
    lines_by_id = {}
    for line in re.findall(
        r"^test_inner\.py::(.+) (PASSED|FAILED|ERROR|SKIPPED) +\[", ran.stdout, re.MULTILINE
    ):
        lines_by_id[line[0]] = line[1].lower()
    return lines_by_id


@pytest.fixture(scope="module")
def kinds(shared_project: Project) -> Project:
    """A file with every kind of test."""
    shared_project.write("test_inner.py", KINDS)
    ini = "[pytest]\naddopts = --strict-markers\nxla_preload =\nmarkers = slow\n"
    shared_project.write("pytest.ini", ini)
    return shared_project


def test_every_kind_of_test(kinds: Project) -> None:
    plain, ran = kinds.run("-v"), kinds.run("--lane=cpu", "-v")
    assert by_id(ran) == KINDS_IDS
    # pytest reports the failed part of a unittest by itself, and passes the test.
    assert by_id(plain) == KINDS_IDS | {"TestSubtests::test_subtests": "passed"}
    assert ran.code == plain.code == 1
    assert ran.shows("assert (6 * 7) == 41")  # rewritten
    assert ran.shows("SUBFAILED(n='1') test_inner.py::TestSubtests::test_subtests")


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (("test_inner.py::TestPlain",), 2),
        (("test_inner.py::TestPlain::TestInner::test_x",), 1),
        (("test_inner.py::test_nested",), 4),
        (("test_inner.py::test_nested[b::c-2]",), 1),
        (("test_inner.py::TestAbsl::test_named_two", "test_inner.py::TestSubtests"), 2),
        (("-k", "numbered or (TestInner and not Absl)"), 3),
        (("-m", "slow"), 1),
        (("-m", "parametrize"), 4),
        (("--deselect=test_inner.py::TestPlain", "-k", "TestPlain or named_one"), 1),
    ],
)
def test_selection(kinds: Project, selection: tuple[str, ...], count: int) -> None:
    ran = kinds.run("--lane=cpu", "-v", *selection)
    chosen = by_id(ran)
    assert len(chosen) == count
    assert chosen.items() <= KINDS_IDS.items()


def test_unknown_id(kinds: Project) -> None:
    ran = kinds.run("--lane=cpu", "test_inner.py::TestPlain::test_y")
    assert ran.code == 4
    assert ran.shows("not found")


# What a file does when it is imported, and what is said of it.
BROKEN_IMPORTS = {
    "missing": ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    "assertion": ("assert 1 == 2", "assert 1 == 2"),
    "crash": ("os.abort()", "crashed in its import"),
    "hang": ("time.sleep(60)", "hung in its import: no result after 1 s"),
    "exit": ("sys.exit(3)", "its import ended the process by sys.exit(3)"),
    "skip": ("pytest.skip('not allowed')", "Using pytest.skip outside of a test"),
}
SKIPPED_IMPORTS = {
    "module": ("pytest.skip('not today', allow_module_level=True)", "not today"),
    "optional": ("pytest.importorskip('nowhere')", "could not import 'nowhere'"),
    "unittest": ("raise unittest.SkipTest('not today')", "not today"),
}


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A file for each import that does not end well, and one whose import does."""
    project = Project(tmp_path_factory.mktemp("imports"))
    for name, (statement, _) in (BROKEN_IMPORTS | SKIPPED_IMPORTS).items():
        project.write(f"test_{name}.py", f"{statement}\ndef test_x(): pass")
    project.write("test_other.py", "def test_y(): pass")
    return project


@pytest.fixture(scope="module")
def imported(imports: Project) -> Ran:
    """A run that goes on where imports fail."""
    return imports.run("--lane=cpu", "--deadline=1", "-rs", "--continue-on-collection-errors")


@pytest.mark.parametrize("name", BROKEN_IMPORTS)
def test_import_that_fails(imported: Ran, name: str) -> None:
    (result,) = imported.cases[f"test_{name}"].result
    assert result.message == "collection failure"
    assert BROKEN_IMPORTS[name][1] in result.text


@pytest.mark.parametrize("name", SKIPPED_IMPORTS)
def test_import_that_skips(imported: Ran, name: str) -> None:
    (result,) = imported.cases[f"test_{name}"].result
    assert "SKIPPED" in imported.stdout
    assert SKIPPED_IMPORTS[name][1] in f"{result.message}{result.text}"


def test_imports_that_do_not_end_well_leave_the_others_alone(
    imports: Project, imported: Ran
) -> None:
    assert "INTERNALERROR" not in imported.stdout
    assert imported.cases["test_y"].is_passed
    assert imported.code == 1
    assert imports.run("--lane=cpu", "--deadline=1").code == 2
    skipped = (f"test_{name}.py" for name in (*SKIPPED_IMPORTS, "other"))
    assert imports.run("--lane=cpu", *skipped).code == 0


def test_the_stack_of_a_crash_at_import(project: Project) -> None:
    project.write("test_inner.py", "def deep(): os.abort()\ndeep()\ndef test_x(): pass")
    ran = project.run("--lane=cpu")
    assert ran.code == 2
    assert ran.shows("SIGABRT")
    assert re.search(r"test_inner\.py.* in deep", ran.stdout)


def test_a_test_that_is_gone_when_it_should_run(project: Project) -> None:
    body = """
if not Path("imported").exists():
    def test_once(): pass
Path("imported").touch()
def test_x(): pass
"""
    project.write("test_inner.py", body)
    ran = project.run("--lane=cpu")
    assert ran.code == 1
    assert ran.outcomes["test_x"] == "passed"
    assert ran.outcomes["test_once"] != "passed"
    assert ran.shows("test_once: collected once, but not in the process that should run it")


def test_each_test_has_a_process_of_its_own(project: Project) -> None:
    body = """
seen = []
def test_a(): seen.append(1)
def test_b(): assert seen == []
def test_c(): os.abort()
def test_d(): time.sleep(60)
@pytest.mark.deadline(0.5)
def test_e(): time.sleep(60)
@pytest.mark.environment(XLA_A="1")
def test_f(): assert os.environ["XLA_A"] == "1"
"""
    project.write("test_inner.py", body)
    ran = project.run("--lane=cpu", "--deadline=2")
    assert ran.outcomes == {
        "test_a": "passed",
        "test_b": "passed",
        "test_c": "crashed",
        "test_d": "hung",
        "test_e": "hung",
        "test_f": "passed",
    }
    assert ran.shows("no result after 0.5 s")


@pytest.mark.parametrize("isolation", ["fork", "none"])
def test_the_main_block_runs_once_and_before_the_tests(project: Project, isolation: str) -> None:
    body = """
ready = []
def setUpModule(): ready.append("module")
class TestX(unittest.TestCase):
    @classmethod
    def setUpClass(cls): ready.append("class")
    def test_a(self): self.assertEqual(ready, ["main", [__file__], "module", "class"])
    def test_b(self): self.assertEqual(ready, ["main", [__file__], "module", "class"])
if __name__ == "__main__":
    ready += ["main", sys.argv]
    sys.exit(unittest.main())
    ready += ["after"]
"""
    project.write("test_inner.py", body)
    ran = project.run("--lane=cpu", "--isolation", isolation)
    assert ran.outcomes == {"test_a": "passed", "test_b": "passed"}


@pytest.mark.parametrize(
    "block",
    [
        "raise AssertionError('not a runner')",
        "print(1)\ndef main(): raise AssertionError('not a runner')",
    ],
)
def test_another_main_block_does_not_run(project: Project, block: str) -> None:
    indented = "\n".join("    " + line for line in block.split("\n"))
    body = f"def test_x(): pass\nif __name__ == '__main__':\n{indented}\n"
    project.write("test_inner.py", body)
    assert project.run("--lane=cpu").outcomes == {"test_x": "passed"}


def test_a_main_block_that_fails(project: Project) -> None:
    body = """
def test_x(): pass
@pytest.mark.skip(reason="not today")
def test_y(): pass
if __name__ == "__main__":
    raise RuntimeError("no such device")
    unittest.main()
"""
    project.write("test_inner.py", body)
    ran = project.run("--lane=cpu")
    assert ran.outcomes == {"test_x": "failed", "test_y": "skipped"}
    assert ran.shows("RuntimeError: no such device")


def test_absl_flags_have_their_defaults(project: Project) -> None:
    body = """
from absl import flags
from absl.testing import absltest
flags.DEFINE_integer("size", 3, "how large")
class TestX(absltest.TestCase):
    def test_x(self):
        self.assertEqual(flags.FLAGS.size, 3)
        self.assertTrue(Path(self.create_tempdir().full_path).is_dir())
if __name__ == "__main__":
    absltest.main()
"""
    project.write("test_inner.py", body)
    assert project.run("--lane=cpu").outcomes == {"test_x": "passed"}


CONFTEST = """
import pytest
@pytest.fixture(scope="session")
def number(): return 42
def pytest_collection_modifyitems(items):
    for item in items:
        assert "seen" not in item.fixturenames or "number" in item.fixturenames
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow"))
        if "strange" in item.keywords:
            item.add_marker(pytest.mark.xfail(reason="strange", strict=True))
"""
MARKED = """
from enum import Enum
Path("imports").open("a").write(f"{os.getpid()}\\n")
class Colour(Enum):
    RED = 1
@pytest.fixture
def seen(number): return [number]
def test_fixture(seen): assert seen == [42]
@pytest.mark.slow
def test_slow(): raise AssertionError
@pytest.mark.strange(Colour.RED)
def test_strange(): assert False
@pytest.mark.parametrize("colour", list(Colour))
def test_colour(colour): assert colour is Colour.RED
@pytest.mark.parametrize("f", [lambda: 1])
def test_lambda(f): assert f() == 1
@pytest.mark.usefixtures("number")
@pytest.mark.skipif(Colour.RED.value == 2, reason="not skipped")
def test_used(): pass
"""


@xdist
def test_conftest_and_markers_across_processes(project: Project, xdist: tuple[str, ...]) -> None:
    ini = "[pytest]\naddopts = --strict-markers\nxla_preload =\nmarkers =\n  slow\n  strange\n"
    project.write("pytest.ini", ini)
    project.write("conftest.py", CONFTEST)
    project.write("test_inner.py", MARKED)
    ran = project.run("--lane=cpu", *xdist)
    assert ran.code == 0
    passed = {"test_fixture", "test_colour[Colour.RED]", "test_lambda[<lambda>]", "test_used"}
    assert {name for name, outcome in ran.outcomes.items() if outcome == "passed"} == passed
    assert ran.outcomes["test_slow"] == "skipped"
    assert ran.shows("1 xfailed")
    imports = (project.path / "imports").read_text().split()
    collecting = 2 if xdist else 1
    assert len(set(imports)) == len(imports) == collecting + 6


def test_failed_first(project: Project) -> None:
    project.write("test_inner.py", "def test_a(): pass\ndef test_b(): assert False")
    assert project.run("--lane=cpu").code == 1
    assert project.run("--lane=cpu", "--lf").outcomes == {"test_b": "failed"}
    assert project.run("--lane=cpu", "--ff").outcomes == {"test_a": "passed", "test_b": "failed"}


def test_files_of_ours_and_others_in_one_run(project: Project) -> None:
    project.write("test_ours.py", "@pytest.mark.lanes('cpu')\ndef test_a(topology): pass")
    project.write("test_theirs.py", "def planes(): pass\nplanes()\ndef test_b(topology): pass")
    project.write("sub/test_theirs.py", "def test_c(topology): assert topology.total == 2")
    ran = project.run("--lane=cpu", "--topology=2")
    assert {n: o for n, o in ran.outcomes.items() if n != "test_a"} == {
        "test_b": "passed",
        "test_c": "passed",
    }


@pytest.mark.parametrize(
    "options", [("--lane=cpu,virtual-tpu",), ("--lane=cpu", "--topology=1,4", "-n2")]
)
def test_two_targets(project: Project, options: tuple[str, ...]) -> None:
    project.write("test_inner.py", "def test_x(): pass")
    ran = project.run(*options)
    assert ran.code == 2
    assert ran.shows("tests without a lanes marker: expected one --lane and one --topology")
    assert "Traceback" not in ran.stdout + ran.stderr


def test_list_of_tests(kinds: Project) -> None:
    ran = kinds.run("--lane=cpu", "--collect-only", "-q")
    ids = re.findall(r"^test_inner\.py::(.+)$", ran.stdout, re.MULTILINE)
    assert ids == list(KINDS_IDS) or sorted(ids) == sorted(KINDS_IDS)
