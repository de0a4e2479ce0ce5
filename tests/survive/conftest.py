"""An owner of a project, and an environment that the tests of ``survive`` share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.drift import wheel
from support.owner import NEW, OLD, Owner, environment


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with pytest, two of its plugins and drift 1."""
    folder = tmp_path_factory.mktemp("shared")
    for version, code in (("1", OLD), ("2", NEW)):
        wheel(folder / "wheels", version, code)
    wheel(folder / "wheels", "1", "", name="capped", needs="drift<2")
    wheel(folder / "wheels", "0", "", name="capped")  # had no bound yet
    for version in ("1", "2"):
        wheel(folder / "wheels", version, "", name="tool")
    wheel(folder / "wheels", "0.5", NEW.replace("'2'", "'0.5'"), needs="tool<2")
    return environment(folder, "pytest==9.0.2", "pytest-xdist", "pytest-rerunfailures", "drift==1")


@pytest.fixture
def owner(python: Path, tmp_path: Path) -> Owner:
    folder = tmp_path / "project"
    folder.mkdir()
    return Owner(folder, python)
