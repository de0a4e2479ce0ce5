"""Somebody's own wheels: found by their addresses, and put in the place of a stack's pins."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness import cli
from harness.errors import BadInputError
from harness.stacks.catalogue import Catalogue
from harness.stacks.wheels import onto

TORCH_XLA = "torch_xla-2.10.0.dev{}-cp311-cp311-linux_x86_64.whl"


def _wheel(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("x", "x")
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _download(tmp_path: Path, addresses: str, *arguments: str) -> tuple[int, list[str]]:
    out = tmp_path / "wheels"
    code = cli.main(
        ["ci", "wheels", addresses, "--out", str(out), "--date", "2026-11-21", *arguments]
    )
    return code, sorted(path.name for path in out.glob("*")) if out.exists() else []


def test_the_newest_day_that_has_all(tmp_path: Path, server: str) -> None:
    served = tmp_path / "served"
    for day in ("20261118", "20261119", "20261120"):
        _wheel(served / TORCH_XLA.format(day))
    for day in ("20261118", "20261119", "20261121"):
        _wheel(served / f"torch-2.10.0.dev{day}-cp311-cp311-linux_x86_64.whl")
    torch = f"{server}/torch-2.10.0.dev{{date}}-cp311-cp311-linux_x86_64.whl"
    both = f"{server}/{TORCH_XLA.format('{date}')}  {torch}"
    assert _download(tmp_path, both, "--back", "1") == (2, [])
    assert _download(tmp_path, both) == (
        0,
        [TORCH_XLA.format("20261119"), "torch-2.10.0.dev20261119-cp311-cp311-linux_x86_64.whl"][
            ::-1
        ],
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "at least one address"),
        ("SERVER/index.html", "expected the address of a wheel"),
        ("file:///a/x-1-py3-none-any.whl", "expected https"),
        ("SERVER/x-1-py3-none-any.whl", "found no day"),
        ("SERVER/page-1-py3-none-any.whl", "sent something else"),
        ("http://127.0.0.1:9/x-1-py3-none-any.whl", "127.0.0.1:9"),
    ],
)
def test_bad_addresses(
    tmp_path: Path, server: str, address: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "served" / "page-1-py3-none-any.whl").write_text("<html>")
    assert _download(tmp_path, address.replace("SERVER", server)) == (2, [])
    assert message in capsys.readouterr().err


def test_wheels_take_the_place_of_pins(tmp_path: Path) -> None:
    stack = Catalogue(Path("fixtures/stacks")).find("2.9.0")
    wheel = _wheel(tmp_path / TORCH_XLA.format("1"))
    own = onto(stack, tmp_path)
    assert own.name == "2.9.0+wheels"
    assert own.pins == {**stack.pins, "torch_xla": str(wheel)}
    assert own.where is None  # its constraints are none of 2.9.0's
    assert onto(Catalogue(Path("fixtures/stacks")).find("nightly"), tmp_path).name == "nightly"


def test_which_of_two_wheels_is_not_guessed(tmp_path: Path) -> None:
    for version in "12":
        _wheel(tmp_path / TORCH_XLA.format(version))
    with pytest.raises(BadInputError, match="expected one wheel of torch-xla"):
        onto(Catalogue(Path("fixtures/stacks")).find("2.9.0"), tmp_path)


def test_a_folder_without_wheels(tmp_path: Path) -> None:
    _wheel(tmp_path / "torch_xla-2.10.0-cp312-cp312-linux_x86_64.whl")
    with pytest.raises(BadInputError, match=r"wheels for Python 3\.11, found none"):
        onto(Catalogue(Path("fixtures/stacks")).find("2.9.0"), tmp_path)
