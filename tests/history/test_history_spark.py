"""The rules' statements, unchanged, on Spark SQL over the same files: the same verdicts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from support import nights
from support.paths import ROOT

from harness.history.store import History
from harness.verdicts.rules import SQL, ask_about, statement

if shutil.which("java") is None:
    pytest.skip("Spark needs Java, and there is no java on the path", allow_module_level=True)
spark_sql = pytest.importorskip(
    "pyspark.sql", reason="pyspark is not installed: it is the group spark", exc_type=ImportError
)

DOCS = ROOT / "docs" / "history.md"
ASKED = (12, 13, 26, 32, 35, 40, 43)  # together they have every verdict
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
VIEWS = ("runs", "answers", "flaky")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("nights")
    recorded_history = History(folder / "history")
    recorded_history.record(nights.write(folder))
    return recorded_history


@pytest.fixture(scope="module")
def chosen(history: History) -> list[str]:
    runs = sorted(place.run for place in history.files.listed().places)
    return [run for night in ASKED for run in runs[2 * night : 2 * night + 2]]


@pytest.fixture(scope="module")
def spark(
    history: History, chosen: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A session with the views that the document tells to make."""
    builder = spark_sql.SparkSession.builder.master("local[2]")
    settings = SETTINGS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for text in documented().values():
        runs = " OR c.run = ".join(f"'{run}'" for run in chosen)
        session.sql(text.replace("'DIR'", f"'{history.location}'").replace("'RUN'", runs))
    for name in VIEWS:
        session.sql(f"CREATE TEMPORARY VIEW {name} AS {statement(name)}")
        session.sql(f"CACHE TABLE {name}")
    yield session
    session.stop()


def documented() -> dict[str, str]:
    """The statements for Spark in docs/history.md, by the view's name."""
    text = DOCS.read_text(encoding="utf-8")
    return dict(re.findall(r"-- spark: (\w+)\n(.+?)(?=\n-- spark:|\n```)", text, re.DOTALL))


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in SQL.glob("*.sql") if path.stem not in VIEWS[:2])
)
def test_same_answer(history: History, spark: Any, chosen: list[str], name: str) -> None:
    here = history.ask(
        lambda connection: ask_about(connection, chosen).execute(statement(name)).fetchall()
    )
    there = [tuple(row) for row in spark.sql(statement(name)).collect()]
    assert normal(there) == normal(here)
    assert here  # each rule has something to say


def normal(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows that can be compared: their order is open, and so is a float's last digit."""
    return sorted(
        repr([f"{value:.9g}" if isinstance(value, float) else value for value in row])
        for row in rows
    )
