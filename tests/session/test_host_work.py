"""What a step costs the host is counted, and does not depend on how busy the machine is."""

from __future__ import annotations

import sys
import time

import pytest
from support.project import Project

from harness.model.host_work import HostWork

STEPS = """
def work(times):
    for _ in range(times): str(int("7"))
def nested(): work(3)

@pytest.mark.lanes("cpu")
def test_counts(host_work):
    with host_work.counted("trace"): nested()
    with host_work.counted("dispatch", 10):
        for _ in range(10): work(2)
def test_plain(host_work):
    with host_work.counted("lower"): sum(range(9))
"""


def test_counts_are_properties_of_the_case(project: Project) -> None:
    project.write("test_inner.py", STEPS)
    ran = project.run("--lane=cpu", "-Werror")
    assert ran.code == 0, ran.stdout
    properties = ran.properties("test_counts")
    # nested and work: what stands in them are types, whose calls are those of no function.
    assert (properties["host_calls_trace"], properties["host_calls_dispatch"]) == ("2", "1")
    assert ran.properties("test_plain")["host_calls_lower"] == "1"


def test_other_work_is_not_counted() -> None:
    import threading

    def busy() -> None:
        while not done.is_set():
            str(time.time())

    done = threading.Event()
    others = [threading.Thread(target=busy) for _ in range(3)]
    counts = []
    for each in others:
        work = HostWork(lambda *_: None)
        with work.counted("trace"):
            sorted(range(1000), key=abs)
        counts.append(work.calls)
        each.start()
    done.set()
    assert all(each == counts[0] for each in counts)


@pytest.mark.parametrize("step", ["", "Trace", "to lower", "9"])
def test_a_step_is_a_word(step: str) -> None:
    with pytest.raises(ValueError, match="expected a step in lower case"):
        HostWork(lambda *_: None).counted(step).__enter__()


def test_a_step_is_counted_once_and_alone() -> None:
    work = HostWork(lambda *_: None)
    with work.counted("trace"), pytest.raises(ValueError, match="under another profiler"):
        work.counted("lower").__enter__()
    with pytest.raises(ValueError, match="counted twice"):
        work.counted("trace").__enter__()
    assert sys.getprofile() is None


def test_a_step_that_fails_leaves_no_profiler() -> None:
    work = HostWork(lambda *_: None)
    with pytest.raises(KeyError), work.counted("trace"):
        raise KeyError
    assert sys.getprofile() is None
    assert not work.calls
