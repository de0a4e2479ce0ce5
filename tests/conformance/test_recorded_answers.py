"""The recorded answers of plugins: what the sample dashboard shows."""

from __future__ import annotations

import zipfile
from pathlib import Path

from support.paths import ROOT

from harness.conformance.plugin_check import Conformity
from harness.junit import report


def test_recorded_answers_are_whole(tmp_path: Path) -> None:
    """Each is a report of one plugin, whose cases are checks with a result and a level."""
    page = (ROOT / "docs/your-plugin.md").read_text()
    with zipfile.ZipFile(ROOT / "fixtures/plugins.zip") as archive:
        archive.extractall(tmp_path)
    files = sorted(tmp_path.glob("*.xml"))
    assert len(files) >= 4
    for file in files:
        results = report.read(file).results.values()
        names = {result.properties["plugin"] for result in results}
        assert names == {file.stem}
        assert f"`{file.stem}`" in page
        conformities = {result.properties["conformity"] for result in results}
        assert conformities <= {str(each) for each in Conformity}
        assert {result.properties["conformity_level"][:2] for result in results} >= {"L0"}
