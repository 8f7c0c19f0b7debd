"""What ran in a machine is attributed to the project's scripts by their content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.lab.shell_trace import FOLDER, early_commands, read_hits
from harness.lab.trace_reader import read_traces
from harness.machine.channels.guest import Guest
from harness.provisioning.command import CommandResult
from harness.shell.coverage import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TEXT = "#!/bin/bash\necho\n"


class TracedMachine:
    """A machine with traces: runs the reader on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.broken = ""

    def install(self, path: str, text: str) -> Path:
        script = self.folder / path
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        return script

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, env
        assert argv[-1] == f"{FOLDER}/traces"
        wanted = json.loads(stdin or "")
        read = read_traces(str(self.traces), wanted["names"], wanted["digests"])
        stdout = self.broken or json.dumps(read)
        return CommandResult(
            argv=tuple(argv), exit_code=0, stdout=stdout, stderr="", duration_s=0.0
        )

    @property
    def guest(self) -> Guest:
        return Guest("m", self)

    def trace(self, name: str, *entries: tuple[str, int], cwd: Path | str = "/") -> None:
        with (self.traces / name).open("a") as file:
            for source, line in entries:
                file.write(f"+\x1e1\x1f{source}\x1f{line}\x1f{cwd}\x1eecho 'x\n'\n")


@pytest.fixture
def machine(tmp_path: Path) -> TracedMachine:
    (tmp_path / "guest").mkdir()
    return TracedMachine(tmp_path / "guest")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "provision.sh"
    path.write_text(TEXT)
    return path


def test_script_is_known_by_its_content_wherever_it_lies(
    machine: TracedMachine, script: Path
) -> None:
    installed = machine.install("var/lib/cloud/instance/scripts/part-001", TEXT)
    machine.trace("7", (str(installed), 2), ("/usr/bin/other", 3))
    machine.trace("8", (str(installed), 1))

    hits, refused = read_hits(machine.guest, [script])

    assert hits == {str(script): {Place(1, 1, 1), Place(2, 1, 1)}}
    assert refused == []


def test_another_version_does_not_count_and_is_told(machine: TracedMachine, script: Path) -> None:
    installed = machine.install("opt/provision.sh", f"{TEXT}# newer\n")
    machine.trace("7", (str(installed), 2))

    hits, (sentence,) = read_hits(machine.guest, [script])

    assert hits == {}
    assert f"ran {installed}, but no script" in sentence
    assert "is another version" in sentence


def test_script_that_removed_itself_does_not_count_and_is_told(
    machine: TracedMachine, script: Path
) -> None:
    machine.trace("7", ("/opt/gone/provision.sh", 2))

    hits, (sentence,) = read_hits(machine.guest, [script])

    assert hits == {}
    assert "the file is gone" in sentence


def test_relative_name_is_that_of_where_the_script_was_when_it_began(
    machine: TracedMachine, script: Path
) -> None:
    """A script that changes its directory keeps its name; one that is sourced there has another."""
    installed = machine.install("opt/provision.sh", TEXT)
    library = machine.install("lib/my lib.sh", "f() {\n  :\n}\n")
    machine.trace("7", ("./provision.sh", 1), cwd=installed.parent)
    machine.trace("7", ("./provision.sh", 2), ("my lib.sh", 2), cwd=library.parent)

    hits, refused = read_hits(machine.guest, [script, library])

    assert hits == {
        str(script): {Place(1, 1, 1), Place(2, 1, 1)},
        str(library): {Place(2, 1, 1)},
    }
    assert refused == []


def test_two_files_of_one_content_both_count(
    machine: TracedMachine, script: Path, tmp_path: Path
) -> None:
    other = tmp_path / "copy.sh"
    other.write_text(TEXT)
    machine.trace("7", (str(machine.install("opt/x", TEXT)), 2))

    hits, _ = read_hits(machine.guest, [script, other])

    assert set(hits) == {str(script), str(other)}


def test_machine_without_traces_ran_nothing(machine: TracedMachine, script: Path) -> None:
    machine.traces.rmdir()

    assert read_hits(machine.guest, [script]) == ({}, [])


@pytest.mark.parametrize("answer", ["Traceback", "[]", '{"/x": {"sha256": 1, "places": []}}'])
def test_answer_that_is_no_trace_is_an_error(
    machine: TracedMachine, script: Path, answer: str
) -> None:
    machine.broken = answer

    with pytest.raises(HarnessError, match="The traces of machine 'm' could not be read"):
        read_hits(machine.guest, [script])


def test_set_up_is_a_command_without_text_of_others() -> None:
    ((shell, option, script, *arguments),) = early_commands()

    assert (shell, option) == ("sh", "-c")
    assert '"BASH_ENV=$1/$3"' in script
    assert arguments[1] == FOLDER
    assert "BASH_XTRACEFD" in arguments[2]
