"""What every command shares: colour, --json, completion, the project's settings."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run_program, xla_harness
from support.paths import ROOT

from harness import cli
from harness.commands import project

ENTRY = """\
[[expectation]]
cases = ["tests/test_a.py::test_x[*]", "tests/test_a.py::test_y[cpu-4]"]
{cause}
reason = "{reason}"
signature = "s"
"""
STACK = 'python = "3.11"\n[pins]\ntorch_xla = "{0}"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with settings and folders of its own."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nxla_stacks = their/stacks\nxla_expectations = their/expected\n"
        "xla_upstream = their/rows.toml\nxla_durations = their/durations.json\n"
    )
    for name in ("stacks", "expected"):
        (tmp_path / "their" / name).mkdir(parents=True)
    issue = ENTRY.format(cause='issue = "a/b#7"', reason="sums are wrong")
    finding = ENTRY.format(cause='finding = "odd-sum"', reason="sums are odd").replace("_a", "_b")
    newer = '\nstack = { torch_xla = ">=2.8" }\n'
    (tmp_path / "their" / "expected" / "a.toml").write_text(f"{issue}{newer}\n{finding}")
    (tmp_path / "their" / "rows.toml").write_text(
        '[[row]]\ntitle = "sums are right"\nissues = ["a/b#7"]\ncases = ["x"]\n'
    )
    for version in ("2.7.0", "2.9.0"):
        (tmp_path / "their" / "stacks" / f"{version}.toml").write_text(STACK.format(version))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
class TestKnown:
    def test_causes_with_their_entries(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["known"]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "a/b#7: sums are right",
            "  failed on 2.9.0: sums are wrong",
            "    their/expected/a.toml:1",
            "      tests/test_a.py::test_x[*]",
            "      tests/test_a.py::test_y[cpu-4]",
            "finding odd-sum",
            "  failed on 2.7.0, 2.9.0: sums are odd",
            "    their/expected/a.toml:9",
            "      tests/test_b.py::test_x[*]",
            "      tests/test_b.py::test_y[cpu-4]",
            "2 known defects, 2 expectations",
        ]

    def test_of_one_stack(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["known", "--stack", "2.7.0", "--json"]) == 0
        (cause,) = json.loads(capsys.readouterr().out)
        (entry,) = cause.pop("expectations")
        assert cause == {"issue": None, "finding": "odd-sum", "title": "sums are odd"}
        assert entry["stacks"] == ["2.7.0"]
        assert entry["where"] == "their/expected/a.toml:9"

    def test_of_one_cause(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["known", "--cause", "#7"]) == 0
        assert "1 known defects" in capsys.readouterr().out

    def test_of_an_unknown_stack(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["known", "--stack", "2.9.1"]) == 2
        assert "stack '2.9.1': did you mean 2.9.0" in capsys.readouterr().err

    @pytest.mark.parametrize("width", [80, 160])
    def test_it_fits_the_terminal(
        self, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("COLUMNS", str(width))
        assert cli.main(["known"]) == 0
        lines = capsys.readouterr().out.splitlines()
        measured = [line for line in lines if not line.startswith("    ") or "/" not in line]
        assert width - 15 < max(map(len, measured)) <= width
        assert any(len(line) > 80 and "::test_" in line for line in lines)  # patterns stay whole


@pytest.mark.usefixtures("folder")
def test_commands_take_the_settings_of_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(project.folder_of_stacks()) == "their/stacks"
    assert str(project.file_of_durations()) == "their/durations.json"
    assert [row.title for row in project.upstream_rows()] == ["sums are right"]
    assert cli.main(["stacks", "list", "--json"]) == 0
    stacks = json.loads(capsys.readouterr().out)
    assert [stack["name"] for stack in stacks] == ["2.7.0", "2.9.0"]
    assert stacks[0]["pins"] == {"torch_xla": "2.7.0"}


def test_a_broken_configuration_is_bad_input(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pytest.ini").unlink()
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options\n")
    project._settings.cache_clear()
    assert cli.main(["known"]) == 2
    assert "pyproject.toml: " in capsys.readouterr().err


def test_without_settings_the_usual_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["stacks", "list"]) == 0
    assert "\njax-0.12.0.1 " in capsys.readouterr().out  # one that came along
    assert cli.main(["stacks", "--folder", "mine", "list"]) == 2
    assert "mine: expected a folder of stacks" in capsys.readouterr().err
    cli.main(["stacks", "doctor"])
    shown = capsys.readouterr()
    assert "this machine\n  " in shown.out
    assert "expected a folder" not in shown.err
    assert cli.main(["stacks", "--folder", "mine", "doctor"]) == 2


def test_json_goes_to_a_file_or_takes_the_place_of_the_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["known", "--json", "known.json"]) == 0
    assert "2 known defects" in capsys.readouterr().out
    inside = json.loads((folder / "known.json").read_text())
    assert cli.main(["known", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == inside
    with pytest.raises(SystemExit, match="2"):
        cli.main(["known", "--json", "no/such/folder.json"])
    assert "expected a file in a folder that exists" in capsys.readouterr().err


def on_a_terminal(*arguments: str, cwd: Path, **environment: str) -> str:
    """What the command writes where both streams are a terminal."""
    ours, theirs = pty.openpty()
    dull = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    child = subprocess.Popen(
        [sys.executable, "-m", "harness", *arguments],
        cwd=cwd,
        env=dull | {"TERM": "xterm"} | environment,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    child.wait()
    os.close(ours)
    return text.decode()


def test_errors_are_red_on_a_terminal_only(folder: Path) -> None:
    error = ("known", "--stack", "2.9.1")
    assert on_a_terminal(*error, cwd=folder).startswith("\x1b[31mxla-harness: stack '2.9.1'")
    assert "\x1b" not in on_a_terminal(*error, cwd=folder, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(*error, cwd=folder, TERM="dumb")
    done = subprocess.run(
        [sys.executable, "-m", "harness", *error], cwd=folder, capture_output=True, check=False
    )
    assert b"\x1b" not in done.stderr


def test_headings_have_the_colour_of_their_verdict(folder: Path) -> None:
    reports = [str(ROOT / "fixtures" / "junit" / f"{s}-cpu.xml") for s in ("2.9.0", "2.5.1")]
    text = on_a_terminal("qualify", *reports, "--out", "out", cwd=folder)
    assert re.search(r"\x1b\[31m\x1b\[1m-+ regressed: |\x1b\[1m\x1b\[31m-+ regressed: ", text)
    assert re.search(r"\x1b\[1m-+ answer -+", text)


def completed(line: str) -> list[str]:
    """What bash offers for the last word of the line."""
    words = line.split(" ")
    script = xla_harness("ci", "completion", "bash", check=True).stdout
    script += f"""
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
COMP_LINE='{line}' COMP_POINT={len(line)}
function=$(complete -p xla-harness | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" xla-harness "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = run_program("bash", "-c", script, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_options() -> None:
    assert completed("xla-harness q") == ["qualify"]
    assert completed("xla-harness ci q") == ["query"]
    assert completed("xla-harness stacks do") == ["doctor"]
    assert "--stack" in completed("xla-harness known --st")
    assert set(completed("xla-harness ci completion ")) >= {"bash", "zsh"}


def test_zsh_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    """No zsh is needed: that it is one for this command is all that is looked at."""
    assert cli.main(["ci", "completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef xla-harness\n")
