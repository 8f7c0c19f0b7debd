"""Lines that ran in a machine are attributed to the project's scripts by the scripts' content."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.lab.shell_trace import FOLDER, early_commands, read_hits, trace_environment, traced
from harness.lab.trace_reader import read_traces
from harness.machine.channels.guest import Guest
from harness.provisioner import Provisioner
from harness.provisioning.command import CommandResult
from harness.shell.coverage import Place
from suites.unit.lab.builders import a_request
from suites.unit.lab.fake_vm import FakeAgent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.lab.node_request import NodeRequest

TEXT = "#!/bin/bash\necho\n"


class TracedMachine:
    """A fake machine with traces; each command reads the traces on this host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.broken: tuple[str, str] | None = None

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
        stdout, stderr = self.broken or (json.dumps(read), "")
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=stdout, stderr=stderr)

    @property
    def guest(self) -> Guest:
        return Guest("m", self)

    def trace(
        self, name: str, *entries: tuple[str, int], cwd: Path | str = "/", inner: int = 0
    ) -> None:
        with (self.traces / name).open("a") as file:
            for source, line in entries:
                file.write(
                    f"{'+' * (1 + inner)}\x1e{1 + 2 * inner}\x1f{source}\x1f{line}\x1f{cwd}\x1eecho 'x\n'\n"
                )


@pytest.fixture
def machine(tmp_path: Path) -> TracedMachine:
    (tmp_path / "guest").mkdir()
    return TracedMachine(tmp_path / "guest")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "provision.sh"
    path.write_text(TEXT)
    return path


def test_traced_script_is_recognised_by_its_content_at_any_path(
    machine: TracedMachine, script: Path
) -> None:
    installed = machine.install("var/lib/cloud/instance/scripts/part-001", TEXT)
    machine.trace("7", (str(installed), 2), ("/usr/bin/other", 3), (str(installed), 2))
    machine.trace("8", (str(installed), 1))
    machine.trace("9", (str(machine.install("opt/copy.sh", TEXT)), 3), inner=1)

    hits, refused = read_hits(machine.guest, [script])

    assert hits == {str(script): {Place(1, 1, 1), Place(2, 1, 1), Place(3, 3, 2)}}
    assert refused == []


def test_relative_script_path_is_resolved_in_the_working_directory_of_its_process(
    machine: TracedMachine, script: Path, tmp_path: Path
) -> None:
    other = tmp_path / "install.sh"
    other.write_text(f"{TEXT}# other\n")
    first = machine.install("opt/a/install.sh", TEXT)
    second = machine.install("opt/b/install.sh", other.read_text())
    machine.trace("7", ("./install.sh", 1), cwd=first.parent)
    machine.trace("8", ("./install.sh", 2), cwd=second.parent)

    hits, refused = read_hits(machine.guest, [script, other])

    assert hits == {str(script): {Place(1, 1, 1)}, str(other): {Place(2, 1, 1)}}
    assert refused == []


def test_traces_of_a_changed_or_deleted_script_are_ignored_and_reported(
    machine: TracedMachine, script: Path
) -> None:
    installed = machine.install("opt/provision.sh", f"{TEXT}# newer\n")
    machine.trace("7", (str(installed), 2))
    machine.trace("8", ("/opt/gone/provision.sh", 2))

    hits, refused = read_hits(machine.guest, [script])

    assert hits == {}
    (gone,) = [sentence for sentence in refused if "/opt/gone/provision.sh" in sentence]
    assert "the file is gone" in gone
    (other,) = [sentence for sentence in refused if sentence != gone]
    assert f"ran {installed}, but no script" in other
    assert "is another version" in other


def test_script_whose_path_is_not_utf8_is_recognised(machine: TracedMachine, script: Path) -> None:
    installed = machine.install("opt/caf\udce9/provision.sh", TEXT)
    entry = f"+\x1e1\x1f{installed}\x1f2\x1f/\x1eecho\n"
    (machine.traces / "7").write_bytes(entry.encode(errors="surrogateescape"))

    assert read_hits(machine.guest, [script]) == ({str(script): {Place(2, 1, 1)}}, [])


def test_trace_entries_that_bash_cannot_have_written_are_ignored(
    machine: TracedMachine, script: Path
) -> None:
    """Code under test may write to the trace."""
    installed = machine.install("opt/provision.sh", TEXT)
    pipe = machine.folder / "provision.sh"
    os.mkfifo(pipe)
    long = f"{installed}\x1f{'9' * 5000}\x1f/\x1e"
    machine.trace("7", (str(installed), 2), (long, 1), (f"{pipe}\0", 1), (str(installed), 0))
    machine.trace("8", (str(pipe), 1))

    hits, refused = read_hits(machine.guest, [script])

    assert hits == {str(script): {Place(2, 1, 1)}}
    assert [str(pipe) in sentence for sentence in refused] == [True]


def test_list_of_refused_files_is_truncated(machine: TracedMachine, script: Path) -> None:
    paths = [f"/{number}/{'x' * 4000}/provision.sh" for number in range(500)]
    machine.trace("7", *((path, 2) for path in paths))

    _, refused = read_hits(machine.guest, [script])

    assert sum(map(len, refused)) < 50_000
    assert "480" in refused[-1]


def test_relative_script_path_is_resolved_in_the_folder_in_which_the_script_was_started(
    machine: TracedMachine, script: Path
) -> None:
    """A script keeps its name after `cd`; a script that it sources there has another folder."""
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


def test_relative_script_path_is_found_in_an_earlier_folder_of_the_process(
    machine: TracedMachine, script: Path
) -> None:
    machine.install("opt/provision.sh", TEXT)
    (machine.folder / "elsewhere").mkdir()
    there, elsewhere = machine.folder / "opt", machine.folder / "elsewhere"
    machine.trace("1", ("/etc/profile", 1), cwd=there)
    machine.trace("1", ("provision.sh", 2), cwd=elsewhere)

    hits, refused = read_hits(machine.guest, [script])

    assert {place.line for place in hits[str(script)]} == {2}
    assert refused == []


def test_script_in_the_current_folder_is_preferred_to_a_script_of_the_same_name_in_the_old_folder(
    machine: TracedMachine, script: Path
) -> None:
    machine.install("first/provision.sh", "exit 1\n")
    machine.install("now/provision.sh", TEXT)
    machine.trace("1", ("/etc/profile", 1), cwd=machine.folder / "first")
    machine.trace("1", ("./provision.sh", 2), cwd=machine.folder / "now")

    hits, refused = read_hits(machine.guest, [script])

    assert {place.line for place in hits[str(script)]} == {2}
    assert refused == []


def test_executed_line_is_attributed_to_each_file_with_the_same_content(
    machine: TracedMachine, script: Path, tmp_path: Path
) -> None:
    other = tmp_path / "copy.sh"
    other.write_text(TEXT)
    machine.trace("7", (str(machine.install("opt/x", TEXT)), 2))

    hits, _ = read_hits(machine.guest, [script, other])

    assert set(hits) == {str(script), str(other)}


def test_machine_without_a_trace_folder_has_no_executed_lines(
    machine: TracedMachine, script: Path
) -> None:
    machine.traces.rmdir()

    assert read_hits(machine.guest, [script]) == ({}, [])


def test_traced_node_sets_up_tracing_first_and_sets_bash_env_for_the_provisioner() -> None:
    mine = Provisioner(name="mine", run=["/opt/mine"], environment={"LANG": "C", "BASH_ENV": "/x"})

    request = traced(a_request(early=[["own"]]), mine)

    assert list(request.early) == [*early_commands(trace_environment(by_trap=False)), ["own"]]
    assert request.provisioner is not None
    assert request.provisioner.environment == {
        "LANG": "C",
        "BASH_ENV": "/var/lib/harness-shell-trace/trace.sh",
    }
    assert request.provisioner.run == mine.run
    assert "HX_TRACE_BY_TRAP=1" in traced(a_request(), mine, by_trap=True).early[0]


@pytest.mark.parametrize(
    ("request_", "is_exported"),
    [
        (a_request(before=[["own"]], command=None), True),
        (a_request(), True),
        (a_request(command=None), False),
        (a_request(before=[["own"]], skip_cloud_init=True), False),
    ],
    ids=["commands of the request", "provisioner", "no commands", "without cloud-init"],
)
def test_bash_env_is_exported_only_if_cloud_init_runs_commands(
    request_: NodeRequest, *, is_exported: bool
) -> None:
    """Since release 24.3, all stages of cloud-init are one process, which began before the trace."""
    found = traced(request_, Provisioner(name="mine", run=["/opt/mine"])).before

    export = ["export", "BASH_ENV=/var/lib/harness-shell-trace/trace.sh"]
    assert list(found) == [*([export] if is_exported else []), *request_.before]


def test_traces_are_read_by_the_python_of_the_guest(tmp_path: Path) -> None:
    first, second = tmp_path / "b.sh", tmp_path / "a.sh"
    first.write_text("1")
    second.write_text("2")
    agent = FakeAgent(answers={"python3": "{}"})

    assert read_hits(Guest("m", agent), [first, second]) == ({}, [])

    (argv,) = agent.commands()
    assert argv[:4] == ("python3", "-I", "-S", "-c")
    assert "def read_traces" in argv[4]
    assert argv[5] == "/var/lib/harness-shell-trace/traces"
    assert agent.limits_s[argv] == 120
    asked = json.loads(agent.stdin[argv])
    assert asked["names"] == ["a.sh", "b.sh"]
    assert asked["digests"] == sorted(asked["digests"])
    assert len(set(asked["digests"])) == 2


def test_error_has_the_reason_why_traces_could_not_be_read(
    machine: TracedMachine, script: Path
) -> None:
    for stdout, stderr, reason in (
        ("", "Traceback\nNo module named json\n", "No module named json"),
        ("Traceback", "", "no reason given"),
        ('{"/x": {"sha256": 1, "places": []}}', "", "no reason given"),
    ):
        machine.broken = (stdout, stderr)

        with pytest.raises(HarnessError, match=rf"of machine 'm' could not be read \({reason}\)"):
            read_hits(machine.guest, [script])
