"""The program that runs a provisioner's commands in the guest, and the evidence of each run."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, Evidence
from harness.provisioner import EXIT_CODE_PATH, RUNS_FOLDER, Provisioner, runner_file
from harness.provisioner.declaration import write_declaration
from harness.provisioner.outcome import EventFiles, LogPatterns, OutcomeDeclaration, OutcomeFile
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult


_OUTCOME, _LOG = "/var/lib/mine/outcome.json", "/var/log/mine.log"
_EVENTS = "/var/log/my events/*.json"
CONSOLE_PATH = "/dev/console"
FAILED_COMMAND_PATH = "/run/gpu-node-failed-command"


@dataclass
class GuestRoot:
    """A folder in place of a guest's root, in which the program runs provisioners."""

    root: Path
    log: str | None = _LOG
    has_console: bool = True
    #: Whether the runner appends the output to a file; under cloud-init, cloud-init does this.
    has_output: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    _started: int = field(default=0)

    @property
    def provisioner(self) -> Provisioner:
        return Provisioner(
            name="mine",
            run=["true"],
            outcome=OutcomeDeclaration(
                file=OutcomeFile(path=_OUTCOME, exit_code="/code", decision="/decision"),
                events=EventFiles(path=_EVENTS, name="/name"),
                log=LogPatterns(path=self.log, decision=r"decided (?P<decision>\w+)"),
            ),
        )

    def run(self, program: str) -> CommandResult:
        """Run a shell program as the provisioner's command; its `$ROOT` is the folder."""
        script = runner_file().content.decode()
        for path in (EXIT_CODE_PATH, FAILED_COMMAND_PATH, RUNS_FOLDER, CONSOLE_PATH):
            assert path in script
            script = script.replace(path, str(self.root / path[1:]))
        for folder in (
            *(["dev"] if self.has_console else []),
            "run",
            "var/log/my events",
            "var/lib/mine",
        ):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        output = CLOUD_INIT_OUTPUT_PATH if self.has_output else ""
        paths = [_OUTCOME, _EVENTS, self.log or "", output]
        return LocalRunner().run(
            [
                *("sh", "-c", script, "run-provisioner.sh", "boot"),
                *(str(self.root / path[1:]) if path else "" for path in paths),
                *("sh", "-c", program),
            ],
            timeout_s=20,
            env={"ROOT": str(self.root), **self.environment},
        )

    def evidence(self, folder: Path) -> Evidence:
        """Return the evidence as it would be gathered now."""
        shutil.copytree(self.root, folder / "files")
        for listed in (folder / "files").rglob("events-before"):
            listed.write_text(listed.read_text().replace(str(self.root), ""))
        write_declaration(self.provisioner, folder)
        return Evidence(folder)


def provisioning(decision: str, event: str | None = None, code: int = 0) -> str:
    """Return a shell program that writes its decision to the log and the outcome, and writes an event."""
    outcome = json.dumps({"code": code, "decision": decision})
    recorded = json.dumps({"name": event})
    return "\n".join(
        [
            f"echo 'decided {decision}' | tee -a \"$ROOT{_LOG}\"",
            f"echo 'AKS_GPU_PREBAKE event=decision action={decision}' >&2",
            f"echo '{outcome}' >\"$ROOT{_OUTCOME}\"",
            f"[ -z '{event or ''}' ] || echo '{recorded}' >\"$ROOT/var/log/my events/{event}.json\"",
            f"exit {code}",
        ]
    )


def run_in_bash(guest: GuestRoot, script: str) -> CommandResult:
    """Run a script in bash, with the start-up file that records the failed command."""
    guest.root.mkdir(parents=True, exist_ok=True)
    (guest.root / "script.bash").write_text(script)
    (guest.root / "lib.bash").write_text("check() {\n  [[ -e /nonexistent ]]\n}\n")
    return guest.run(
        f'cd "$ROOT"; BASH_ENV="$ROOT{FAILED_COMMAND_PATH}.bash" exec bash ./script.bash'
    )


@pytest.mark.parametrize(
    ("script", "noted"),
    [
        ("set -euo pipefail\ni=0\n((i++))\necho no\n", (1, "./script.bash", 3, "((i++))")),
        ("set -e\n. ./lib.bash\ncheck\n", (1, "./lib.bash", 2, "[[ -e /nonexistent ]]")),
        ("set -eo pipefail\n(exit 5) | cat\n", (5, "./script.bash", 2, "cat")),
        ("set -e\nx=$(exit 4)\n", (4, "./script.bash", 2, "x=$(exit 4)")),
        ("trap '[[ -e /no ]]; true' EXIT\nset -e\nfalse\n", (1, "./script.bash", 3, "false")),
        ("set -e\nfalse && true\n! true\nif false; then :; fi\n(exit 2) || exit 3\n", None),
        ("false\nexit 1\n", None),
        ("set -e\n(false) &\nwait\nexit 1\n", None),
        ("set -e\nlocal_x() { local x=$(false); }\nlocal_x\nexit 1\n", None),
        ("set -e\n", None),
    ],
)
def test_evidence_has_the_command_that_ended_a_bash_script(
    tmp_path: Path, script: str, noted: tuple[int, str, int, str] | None
) -> None:
    guest = GuestRoot(tmp_path / "root")
    run_in_bash(guest, script)

    failed = guest.evidence(tmp_path / "evidence").failed_command

    found = failed and (failed.exit_code, failed.file, failed.line, failed.command)
    assert found == noted


def test_error_trap_does_not_affect_child_scripts_or_the_next_run(
    tmp_path: Path,
) -> None:
    """Scripts that the script starts have no trap, and the next run does not use the recorded command."""
    guest = GuestRoot(tmp_path / "root")
    first = run_in_bash(
        guest,
        "env | grep -c BASH_ENV || true\ndeclare -p | grep -c gpu-node-failed || true\n"
        "bash -c 'trap -p ERR DEBUG EXIT; set -e; false' || false\nset -e\nfalse\n",
    )
    # A run that is killed after its command failed leaves this file.
    (guest.root / FAILED_COMMAND_PATH[1:]).write_text("1\n9\n/killed\nfalse\n")
    run_in_bash(guest, "exit 1\n")

    evidence = guest.evidence(tmp_path / "evidence")

    assert first.stdout.splitlines()[-2:] == ["0", "0"]
    noted = evidence.of_run(1).failed_command
    assert noted is not None
    assert noted.line == 5
    assert evidence.failed_command is None


@pytest.mark.parametrize("log", [_LOG, None], ids=["own log", "output"])
def test_each_run_has_its_own_evidence(tmp_path: Path, log: str | None) -> None:
    guest = GuestRoot(tmp_path / "root", log=log)
    first = guest.run(provisioning("build", "built", code=86))
    second = guest.run(provisioning("skip", "skipped"))

    evidence = guest.evidence(tmp_path / "evidence")

    assert (first.exit_code, second.exit_code) == (86, 0)
    assert evidence.runs == [1, 2]
    expect.provisioned(evidence)
    expect.decided(evidence, "skip")
    expect.prebake_line(evidence, action="skip")
    expect.events_recorded(evidence, "skipped")
    expect.log_line(evidence, "decided skip")
    expect.provisioned(evidence, exit_code=86, run=1)
    expect.decided(evidence, "build", run=1)
    expect.prebake_line(evidence.of_run(1), action="build")
    expect.events_recorded(evidence, "built", run=1)
    expect.log_line(evidence, "decided build", run=1)


def test_runner_returns_the_output_and_exit_code_of_the_provisioner_to_cloud_init(
    tmp_path: Path,
) -> None:
    guest = GuestRoot(tmp_path / "root", has_output=False)

    result = guest.run("echo step; exit 7")

    assert (result.exit_code, result.stdout) == (7, "\n-- run 1 of the provisioner: boot\nstep\n")
    assert not (guest.root / CLOUD_INIT_OUTPUT_PATH[1:]).exists()


def test_output_is_shown_on_the_console_while_the_provisioner_runs(tmp_path: Path) -> None:
    guest = GuestRoot(tmp_path / "root")
    shown = 'until grep -q step "$ROOT/dev/console"; do sleep 0.01; done; echo shown'

    result = guest.run(f"echo step; {shown}")

    assert result.ok, result.render()
    assert (guest.root / "dev/console").read_text().split("\n")[-3:] == ["step", "shown", ""]


def test_runner_does_not_change_variables_of_the_provisioner(tmp_path: Path) -> None:
    names = (
        "name",
        "outcome",
        "log",
        "output",
        "latest",
        "runs",
        "number",
        "run",
        "console",
        "code",
    )
    guest = GuestRoot(tmp_path / "root", environment={name: f"my-{name}" for name in names})

    result = guest.run(f"echo {' '.join(f'${name}' for name in names)}")

    assert " ".join(guest.environment.values()) in result.stdout.splitlines()


def test_guest_without_a_console_is_provisioned(tmp_path: Path) -> None:
    guest = GuestRoot(tmp_path / "root", has_console=False)

    result = guest.run("echo step; exit 3")

    assert (result.exit_code, result.stderr) == (3, "")
    assert result.stdout.endswith("\nstep\n")
    assert (guest.root / CLOUD_INIT_OUTPUT_PATH[1:]).read_text() == result.stdout


@pytest.mark.parametrize("run", [1, None])
def test_results_of_an_earlier_run_are_not_attributed_to_a_later_run(
    tmp_path: Path, run: int | None
) -> None:
    guest = GuestRoot(tmp_path / "root")
    other = {1: "skip", None: "build"}[run]
    guest.run(provisioning("build", "build", code=86))
    guest.run(provisioning("skip", "skip"))
    evidence = guest.evidence(tmp_path / "evidence")
    code = 0 if run == 1 else 86

    with pytest.raises(ExpectationError):
        expect.provisioned(evidence, exit_code=code, run=run)
    with pytest.raises(ExpectationError):
        expect.decided(evidence, other, run=run)
    with pytest.raises(ExpectationError):
        expect.prebake_line(evidence.of_run(run), action=other)
    with pytest.raises(ExpectationError):
        expect.events_recorded(evidence, other, run=run)
    with pytest.raises(ExpectationError):
        expect.log_line(evidence, f"decided {other}", run=run)


def test_killed_run_that_writes_no_outcome_does_not_have_the_outcome_of_the_earlier_run(
    tmp_path: Path,
) -> None:
    """A provisioner that is killed early leaves the outcome file of the previous run unchanged."""
    guest = GuestRoot(tmp_path / "root")
    guest.run(provisioning("build"))
    guest.run("kill -9 $PPID")

    evidence = guest.evidence(tmp_path / "evidence")

    assert evidence.outcome is None
    assert evidence.exit_code is None
    with pytest.raises(ExpectationError, match="the provisioner did not run, or was killed"):
        expect.provisioned(evidence)
    expect.provisioned(evidence, run=1)


@pytest.mark.parametrize("run", [1, 2, 3])
def test_each_run_has_an_outcome_even_if_all_runs_write_the_same_outcome(
    tmp_path: Path, run: int
) -> None:
    """A second `plan` makes the same decision as the first."""
    guest = GuestRoot(tmp_path / "root")
    for _ in range(3):
        guest.run(provisioning("skip"))

    evidence = guest.evidence(tmp_path / "evidence")

    expect.decided(evidence, "skip", run=run)


def test_run_that_writes_no_outcome_has_none_although_other_runs_have_one(tmp_path: Path) -> None:
    guest = GuestRoot(tmp_path / "root")
    guest.run(provisioning("skip"))
    guest.run("true")
    guest.run(provisioning("skip"))

    evidence = guest.evidence(tmp_path / "evidence")

    assert evidence.of_run(1).outcome is not None
    assert evidence.of_run(2).outcome is None
    assert evidence.of_run(3).outcome is not None


def test_run_that_lost_power_does_not_have_the_outcome_of_the_earlier_run(tmp_path: Path) -> None:
    """The runner writes nothing after a power loss, so only the output marks the run."""
    guest = GuestRoot(tmp_path / "root")
    guest.run(provisioning("skip"))
    guest.run("true")
    (guest.root / RUNS_FOLDER[1:] / "2" / "outcome-stamp-after").unlink()

    assert guest.evidence(tmp_path / "evidence").outcome is None


def test_outcome_of_the_bake_is_not_attributed_to_the_first_run(tmp_path: Path) -> None:
    guest = GuestRoot(tmp_path / "root")
    baked = guest.root / _OUTCOME[1:]
    baked.parent.mkdir(parents=True)
    baked.write_text('{"code": 0, "decision": "baked"}\n')
    guest.run("true")

    assert guest.evidence(tmp_path / "evidence").outcome is None


def test_runner_returns_output_and_exit_code_and_writes_the_output_to_the_cloud_init_log(
    tmp_path: Path,
) -> None:
    guest = GuestRoot(tmp_path / "root")
    result = guest.run("echo out; echo err >&2; exit 7")

    assert (result.exit_code, result.stderr) == (7, "")
    assert result.stdout == "\n-- run 1 of the provisioner: boot\nout\nerr\n"
    assert (guest.root / CLOUD_INIT_OUTPUT_PATH[1:]).read_text() == result.stdout


def test_output_of_the_bake_is_not_attributed_to_the_first_run(tmp_path: Path) -> None:
    """A baked image keeps the output of cloud-init; an instance numbers its runs from 1 again."""
    guest = GuestRoot(tmp_path / "root", log=None)
    guest.run("echo decided build")
    guest.run("echo decided bake")
    shutil.rmtree(guest.root / RUNS_FOLDER[1:])
    guest.run("echo began")
    evidence = guest.evidence(tmp_path / "evidence")

    expect.log_line(evidence, "began")
    assert evidence.log_decision is None
    with pytest.raises(ExpectationError, match="A line with 'decided' was expected"):
        expect.log_line(evidence, "decided")


def test_provisioner_runs_even_if_its_results_cannot_be_stored(tmp_path: Path) -> None:
    """On a full disk, the run has no folder for its results."""
    guest = GuestRoot(tmp_path / "root")
    taken = guest.root / "var/lib/cloud"
    taken.parent.mkdir(parents=True)
    taken.write_text("This is no folder.")

    result = guest.run("exit 9")

    assert result.exit_code == 9
    assert (guest.root / EXIT_CODE_PATH[1:]).read_text() == "9\n"


def test_expectation_for_a_run_number_that_does_not_exist_raises_a_harness_error(
    tmp_path: Path,
) -> None:
    guest = GuestRoot(tmp_path / "root")
    guest.run("true")
    guest.run("true")

    with pytest.raises(
        HarnessError, match=r"has no run 3 of the provisioner; its runs are: 1, 2\."
    ):
        expect.provisioned(guest.evidence(tmp_path / "evidence"), run=3)


def test_log_line_of_a_run_is_refused_if_the_log_was_replaced_since_that_run(
    tmp_path: Path,
) -> None:
    guest = GuestRoot(tmp_path / "root")
    guest.run(provisioning("build") + "\n")
    guest.run(f'echo new >"$ROOT{_LOG}"')
    evidence = guest.evidence(tmp_path / "evidence")

    expect.log_line(evidence, "new")
    with pytest.raises(HarnessError, match="log was replaced since run 1"):
        expect.log_line(evidence, "decided build", run=1)
