"""The properties of a report by name: what the harness writes, and what a test may set."""

from __future__ import annotations

from datetime import UTC, datetime

from harness.model.provenance import PROPERTY as MODIFIED
from harness.model.versions import COMPONENTS
from harness.model.wheel_checksums import PROPERTY as WHEELS

# Properties of the whole report. The format changes when a reader of the last one would be wrong.
FORMAT_PROPERTY = "xla_harness_report"
FORMAT = "3"
STACK_PROPERTY = "stack"  # the name that the run was given, in the variable below
STACK_VARIABLE = "XLA_HARNESS_STACK"
LEFT_OUT = "left out: "
# Of a case that did not run: when its result was measured, UTC, and on which stack.
REUSED = "reused"
# Of a case that ran to check a stored result: how that differs from the new one.
REUSED_WRONGLY = "reused_wrongly"
VERSIONS = ("python", *COMPONENTS)

# Who expected a failure, in the property expected_by.
EXPECTED_BY_ENTRY, EXPECTED_BY_PYTEST = "expectation", "pytest"

# Of a pass that executed nothing on its lane: what it did there.
NOT_EXECUTED = "not_executed"
# Before the name of a step: how many functions the host called in it (harness.model.host_work).
HOST_CALLS = "host_calls_"
# What a test of any pytest may say of itself with record_property.
SAID_BY_TESTS = frozenset({"area", "lane", "topology", "upstream", "layer"})
# What a lane counts. A test of any pytest may count likewise: nothing but numbers is read there.
_FACTS = frozenset(
    {
        *("clients", "discoveries", "compilations", "executions"),
        "communicators",
        *("card", "driver", "plugin"),
        *("conformity", "conformity_level"),
        *("plugin_api", "plugin_says", "plugin_attributes", "plugin_extensions"),
        *("pallas_interpreted", "pallas_tpu_interpreted", "pallas_kernels", "pallas_faults"),
        *("options_left_out", "rewritten", "faults_planted"),
        *("faults_executed", "faults_refused"),
        *("aot_programs", "aot_not_computed", "aot_collectives", "aot_transfers", "aot_kernels"),
        *("aot_bytes_inside", "aot_bytes_across", "aot_flops", "aot_peak_bytes"),
        *("aot_vmem", "aot_smem", "aot_vector_spills", "aot_scalar_spills"),
        *("aot_registers", "aot_shared", "aot_local"),
        *("aot_communicators", "aot_options", "aot_changed", "aot_programs_compiled"),
    }
)
_RECORD = frozenset(
    {
        *("id", "framework", "isolation", "deadline"),
        *("expectation", "expected", "expected_by", "actual"),
        *("outcome", "outcome_detail", "failure", "signature", "signal", "unproven", MODIFIED),
        *(NOT_EXECUTED, REUSED, REUSED_WRONGLY),
        *("duration_setup", "duration_runtime_start", "duration_body", "duration_isolation"),
    }
)
# A test case of a report of ours that has one of them is a case.
OF_A_CASE = frozenset({"id", "isolation", "outcome"})
_MERGED = frozenset({"workers", "skipped_on"})  # by harness.junit.merge
# Never in a report: what readers say of a case in a history.
OUTCOMES, LOST = "outcomes", "lost"
_READ = frozenset({OUTCOMES, LOST})
# The names that no test may set in a report of ours. The writer renames them with ``of_a_test``.
RESERVED = SAID_BY_TESTS | _FACTS | _RECORD | _MERGED | _READ | frozenset(VERSIONS)


def when_measured(began: datetime, stack: str) -> str:
    """Return the value of REUSED: when the run began, and its stack if it was told one."""
    return f"{began.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} {stack}".rstrip()


def of_a_test(name: str) -> str:
    """Return the name of a property that a test has set, not the harness: ``test:outcome``."""
    return f"test:{name}" if name in RESERVED else name


def of_a_session(name: str) -> str:
    """Return the name of a property of the whole report that a session has set."""
    own = name in (FORMAT_PROPERTY, STACK_PROPERTY, MODIFIED, WHEELS, *VERSIONS)
    own = own or name.startswith(LEFT_OUT)
    return f"test:{name}" if own else name


def readable(properties: dict[str, str], *, ours: bool) -> dict[str, str]:
    """Return a case's properties, with those that only a test can have set under other names."""
    theirs = _READ if ours else RESERVED - SAID_BY_TESTS - _FACTS
    return {of_a_test(name) if name in theirs else name: properties[name] for name in properties}


def interpreted(*, ours: bool) -> frozenset[str]:
    """Return the names that matter where a case is read: a case may have each only once."""
    return RESERVED - _READ if ours else SAID_BY_TESTS
