"""Reports of two frameworks, each installed alone, which one small suite asks the same."""

from __future__ import annotations

from collections.abc import Callable

from support.installed import install
from support.project import Project

from harness.junit.report import Report, read

MOVE = "acme..zeta"
FRAMEWORK = """
class {title}:
    name = "{name}"
    packages = ("{name}",)
    processes = ""
    preload = ()
    read_at_import = ()

    def environment(self, platform, devices):
        return {{}}

    def prepare(self, platform, devices):
        pass

    def named_platforms(self, environment):
        return []

    def clients(self):
        return []

    def start(self, devices, *, spmd):
        pass
"""
# Both frameworks are known in both runs; the one that a run has no package of is not installed.
SUITE = """\
AGAIN = "AGAIN" in os.environ
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.frameworks("acme", "zeta")]

@pytest.fixture
def framework(xla_target):
    __import__(xla_target.framework)
    return xla_target.framework

def test_works(framework): pass
@pytest.mark.parametrize("n", [1])
def test_works_too(framework, n): pass
def test_broken(framework): assert not framework, "sums differ"
@pytest.mark.upstream("pytorch/xla#8854")
def test_fixed(framework): assert framework != "acme", "acme differs"
@pytest.mark.upstream("pytorch/xla#8522")
def test_breaks(framework): assert framework != "zeta", "zeta differs"
def test_breaks_now_and_then(framework): assert framework != "zeta" or AGAIN
def test_skipped(framework):
    if framework == "zeta": pytest.skip("zeta has none")
@pytest.mark.frameworks("acme")
def test_own(framework): pass
@pytest.mark.frameworks("zeta")
def test_new(framework): pass
"""
IMPORTS = "import acme\n@pytest.mark.lanes('cpu')\ndef test_imports(): pass\n"
PLAIN = "@pytest.mark.lanes('cpu')\ndef test_plain(): pass\n"


def asked(name: str, framework: str, parameter: str = "") -> str:
    """The id of a case of SUITE, or its key where MOVE is the framework."""
    return f"test_asked.py::test_{name}[cpu-4-{framework}{parameter}]"


def run_both(project: Project) -> Callable[[str], Report]:
    """Run the suite with acme as ``old`` and with zeta as ``new``, and reruns of both."""
    entries = "".join(f"{name} = {name}_framework:{name.title()}\n" for name in ("acme", "zeta"))
    modules = {
        f"{name}_framework": FRAMEWORK.format(name=name, title=name.title())
        for name in ("acme", "zeta")
    }
    site = project.path / "site"
    path = install(site, "both", modules, f"[xla_harness.frameworks]\n{entries}")
    for name in ("acme", "zeta"):
        install(site / f"only_{name}", name, {name: ""}, "")
    project.write("test_asked.py", SUITE)
    project.write("test_imports.py", IMPORTS)
    project.write("test_plain.py", PLAIN)
    for side, name in (("old", "acme"), ("new", "zeta")):
        own = {"PYTHONPATH": f"{site / f'only_{name}'}:{path}", "XLA_HARNESS_STACK": side}
        project.run(f"--junitxml={side}.xml", **own)
        project.run(f"--junitxml={side}-again.xml", "-k", "breaks", AGAIN="1", **own)
    return lambda name: read(project.path / f"{name}.xml")
