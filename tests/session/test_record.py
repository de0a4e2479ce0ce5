"""The JUnit report: one flat record for each case, whatever became of it, alone and under xdist."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

import pytest
import xmlschema
from support.project import Project, Ran

SCHEMA = Path(__file__).parent / "junit.xsd"
TESTCASE_PROPERTIES = '<xs:element ref="properties" minOccurs="0"/>'
CASES = """\
pytestmark = [pytest.mark.lanes("cpu"), pytest.mark.upstream("pytorch/xla#1", "jax-ml/jax#2")]

@pytest.fixture
def slow():
    time.sleep(0.2)

def test_passes(slow): time.sleep(0.1)
def test_fails(): assert 0, "first line\\nsecond <line> \\x00 \\x1b[31m \\N{SNOWMAN}"
def test_crashes(): print("output \\x01 ]]> \\udcff"); os.abort()
@pytest.mark.deadline(0.3)
def test_hangs(): time.sleep(60)
def test_skips(): pytest.skip("no use")
def test_fails_as_expected(): assert 0, "known"
def test_passes_unexpectedly(): pass
@pytest.fixture
def bad_end():
    yield
    os.abort()
def test_fails_and_crashes(bad_end): assert 0
def test_properties(record_property): record_property("own", "value")
@pytest.mark.upstream("openxla/xla#3")
@pytest.mark.topologies("2x4")
def test_elsewhere(): pass
"""
EXPECTED = """\
[[expectation]]
cases = ["suites/area/test_inner.py::test_fails_as_*", "*::test_passes_unexpectedly[cpu-4]"]
issue = "pytorch/xla#1"
reason = "it is so"
signature = "known"
"""
OUTCOMES = {
    "test_passes": "passed",
    "test_fails": "failed",
    "test_crashes": "crashed",
    "test_hangs": "hung",
    "test_skips": "skipped",
    "test_fails_as_expected": "expected failure",
    "test_passes_unexpectedly": "unexpected pass",
    "test_fails_and_crashes": "crashed",
    "test_properties": "passed",
    "test_elsewhere[cpu-2x4]": "passed",
}
ELEMENTS = {
    "passed": set(),
    "failed": {"failure"},
    "crashed": {"failure"},
    "hung": {"failure"},
    "skipped": {"skipped"},
    "expected failure": {"skipped"},
    "unexpected pass": {"failure"},
}


@pytest.fixture(scope="module", params=[(), ("-n2",)], ids=["alone", "xdist"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    project = Project(tmp_path_factory.mktemp("record"))
    project.write("suites/area/test_inner.py", CASES)
    project.write("expected/area.toml", EXPECTED)
    return project.run(
        "--expectations=expected", "-o", "junit_logging=all", "--topology=4,2x4", *request.param
    )


@pytest.mark.parametrize("name", OUTCOMES)
def test_properties_are_complete(ran: Ran, name: str) -> None:
    properties = ran.properties(name)
    outcome = OUTCOMES[name]
    assert properties["outcome"] == outcome
    assert properties["area"] == "area"
    assert properties["lane"] == "cpu"
    assert properties["topology"] == ("2x4" if "2x4" in name else "4")
    assert properties["isolation"] == "fork"
    assert properties["upstream"].split()[-2:] == ["pytorch/xla#1", "jax-ml/jax#2"]
    assert ("openxla/xla#3" in properties["upstream"]) == ("elsewhere" in name)
    for component in ("torch", "torch_xla", "jax", "jaxlib", "libtpu"):
        assert properties[component] == version(component)
    assert ("outcome_detail" in properties) == (outcome != "passed")
    actual = {"expected failure": "failed", "unexpected pass": "passed"}.get(outcome, outcome)
    assert properties["actual"] == actual
    assert properties.get("expected", "") == ("failed" if "expected" in name else "")
    assert properties.get("expected_by", "") == ("expectation" if "expected" in name else "")
    assert float(properties["deadline"]) == (0.3 if outcome == "hung" else 60)
    assert ("signal" in properties) == (outcome == "crashed")
    assert ("expectation" in properties) == ("expected" in name)
    for duration in ("setup", "body", "isolation"):
        assert 0 <= float(properties[f"duration_{duration}"]) < 30


@pytest.mark.parametrize("name", OUTCOMES)
def test_elements_say_the_same(ran: Ran, name: str) -> None:
    kinds = {type(result).__name__.lower() for result in ran.cases[name].result}
    if name == "test_fails_and_crashes":  # pytest's second test case, for the second failure
        assert kinds == {"error"}
    else:
        assert kinds == ELEMENTS[OUTCOMES[name]]


def test_durations_are_measured(ran: Ran) -> None:
    properties = ran.properties("test_passes")
    assert 0.2 <= float(properties["duration_setup"]) < 0.5
    assert 0.1 <= float(properties["duration_body"]) < 0.4
    assert 0.3 <= float(ran.properties("test_hangs")["duration_body"]) < 10
    assert ran.cases["test_hangs"].time >= 0.3


def test_details_are_texts(ran: Ran) -> None:
    detail = ran.properties("test_fails")["outcome_detail"]
    assert detail.splitlines()[:2] == [
        "AssertionError: first line",
        "  second <line> #x00 #x1B[31m \N{SNOWMAN}",
    ]
    assert ran.properties("test_properties")["own"] == "value"
    assert ran.properties("test_fails_as_expected")["expectation"] == "pytorch/xla#1"
    assert "output #x01 ]]> " in ran.cases["test_crashes"].system_out


def test_every_test_case_has_its_record(ran: Ran) -> None:
    cases = list(ET.parse(ran.junit).iter("testcase"))
    assert len(cases) == len(OUTCOMES) + 1
    for case in cases:
        outcomes = case.findall("properties/property[@name='outcome']")
        assert len(outcomes) == 1, case.get("name")


def test_report_fits_the_schema(ran: Ran) -> None:
    xmlschema.XMLSchema(SCHEMA).validate(ran.junit)


def test_report_without_properties_of_cases_is_plain_junit(ran: Ran) -> None:
    """What remains fits the part of the schema that every reader of JUnit has."""
    strict = SCHEMA.read_text(encoding="utf-8")
    head, _, rest = strict.partition('<xs:element name="testcase">')
    schema = xmlschema.XMLSchema(
        head + '<xs:element name="testcase">' + rest.replace(TESTCASE_PROPERTIES, "", 1)
    )
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(ran.junit)
    tree = ET.parse(ran.junit)
    for case in tree.iter("testcase"):
        for properties in case.findall("properties"):
            case.remove(properties)
    schema.validate(tree)
