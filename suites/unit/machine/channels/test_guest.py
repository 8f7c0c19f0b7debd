"""Operations on a guest, with a scripted command runner."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import CloudInitResult
from harness.errors import HarnessError
from harness.machine.channels.guest import UNTIL_LISTED, Guest
from harness.provisioning.wait import Deadline
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.command import CommandResult

READ = '[ -e "$1" ] || exit 44; exec cat -- "$1"'
WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1.part" && mv -- "$1.part" "$1"'
WAIT = (
    "until [ -e /run/cloud-init/result.json ]; do sleep 0.1; done; cat /run/cloud-init/result.json"
)


class Unreachable:
    """A command runner whose connection to the guest is lost."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del argv, timeout_s, stdin, env
        raise HarnessError("The connection broke.")


def test_command_runs_with_the_given_time_limit_and_input_and_environment() -> None:
    environment = {"LC_ALL": "C"}
    script = ScriptedRunner().expect("cat", timeout_s=2.5, stdin="text", env=environment)

    with script as runner:
        Guest("node", runner).run("cat", timeout_s=2.5, stdin="text", env=environment)


def test_report_of_cloud_init_comes_from_its_status_file() -> None:
    status = {"v1": {"init": {"errors": ["no such module"], "recoverable_errors": {}}}}
    script = ScriptedRunner().expect(
        ["sh", "-c", READ, "read", "/run/cloud-init/status.json"], stdout=json.dumps(status)
    )

    with script as runner:
        report = Guest("node", runner).cloud_init_report()

    assert report.errors == ("no such module",)


def test_output_is_stripped_and_the_command_runs_with_the_given_time_limit() -> None:
    with ScriptedRunner().expect("uname -r", stdout="6.1.0-56\n", timeout_s=2.5) as runner:
        assert Guest("node", runner).output_of("uname", "-r", timeout_s=2.5) == "6.1.0-56"


def test_failed_command_raises_an_error_instead_of_returning_its_output() -> None:
    with (
        ScriptedRunner().expect("uname -r", stderr="broken", exit_code=2) as runner,
        pytest.raises(HarnessError, match=r"A command in machine 'node' failed[\s\S]*broken"),
    ):
        Guest("node", runner).output_of("uname", "-r")


def test_text_of_a_file_is_returned_unchanged_and_text_of_a_missing_file_is_none() -> None:
    read = ["sh", "-c", READ, "read", "/a b"]
    script = ScriptedRunner().expect(read, stdout="x\n").expect(read, exit_code=44)
    with script.expect(read, exit_code=124) as runner:
        guest = Guest("node", runner)

        assert [guest.read_text("/a b"), guest.read_text("/a b")] == ["x\n", None]
        with pytest.raises(HarnessError, match="'/a b' could not be read"):
            guest.read_text("/a b")


def test_text_of_a_written_file_is_sent_through_stdin_and_a_failure_is_reported() -> None:
    write = ["sh", "-c", WRITE, "write", "/a/b"]
    script = ScriptedRunner().expect(write, stdin="it's\n")
    with script.expect(write, exit_code=1, stderr="Read-only file system") as runner:
        Guest("node", runner).write_text("/a/b", "it's\n")

        with pytest.raises(HarnessError, match="Read-only file system"):
            Guest("node", runner).write_text("/a/b", "x")


def test_result_of_cloud_init_is_awaited_and_parsed() -> None:
    text = json.dumps({"v1": {"datasource": "DataSourceNoCloud", "errors": ["x"]}})
    script = ScriptedRunner().expect(["sh", "-c", WAIT], stdout=text, timeout_s=30)
    with script as runner:
        result = Guest("node", runner).wait_for_cloud_init_result(Deadline.after(30, FakeClock()))

    assert result == CloudInitResult(datasource="DataSourceNoCloud", errors=("x",))


def test_result_of_cloud_init_that_is_present_is_read_even_at_the_deadline() -> None:
    """The guest still gets one second to answer."""
    text = json.dumps({"v1": {"datasource": None, "errors": []}})
    script = ScriptedRunner().expect(["sh", "-c", WAIT], stdout=text, timeout_s=1)
    with script as runner:
        Guest("node", runner).wait_for_cloud_init_result(Deadline.after(0, FakeClock()))


def test_wait_for_cloud_init_continues_if_its_deadline_was_extended() -> None:
    """Progress of the guest moved the deadline beyond the limit of the running command."""
    text = json.dumps({"v1": {"datasource": None, "errors": []}})
    script = ScriptedRunner().expect(["sh", "-c", WAIT], is_timed_out=True)
    with script.expect(["sh", "-c", WAIT], stdout=text) as runner:
        Guest("node", runner).wait_for_cloud_init_result(Deadline.after(30, FakeClock()))


def test_error_for_a_missing_cloud_init_result_mentions_the_log() -> None:
    clock = FakeClock()
    deadline = Deadline.after(30, clock)
    clock.sleep(30)
    script = ScriptedRunner().expect(["sh", "-c", WAIT], is_timed_out=True)
    with (
        script as runner,
        pytest.raises(HarnessError, match=r"no result .* its log in the guest is '/var/log"),
    ):
        Guest("node", runner).wait_for_cloud_init_result(deadline)


def test_timeout_error_for_a_missing_pci_function_shows_the_pci_bus() -> None:
    wait = ["sh", "-c", UNTIL_LISTED, "wait", "0x10de:0x2330", "2"]
    script = ScriptedRunner().expect(wait, is_timed_out=True, timeout_s=2.5)
    script.expect("lspci -nn", stdout="00:00.0 Host bridge\n")
    with script as runner, pytest.raises(HarnessError, match=r"lists:\n00:00\.0 Host bridge"):
        Guest("node", runner).wait_for_pci("10de:2330", count=2, timeout_s=2.5)


def test_power_off_that_closes_the_connection_is_not_an_error() -> None:
    Guest("node", Unreachable()).power_off()


def test_refused_power_off_is_reported() -> None:
    script = ScriptedRunner().expect("systemctl --no-block poweroff", exit_code=1)
    with script as runner, pytest.raises(HarnessError, match="refused to power off"):
        Guest("node", runner).power_off()


def test_guest_without_cloud_init_is_reported() -> None:
    runner = ScriptedRunner()
    runner.expect(
        (
            *("sh", "-c", '[ -e "$1" ] || exit 44; exec cat -- "$1"'),
            *("read", "/run/cloud-init/status.json"),
        ),
        exit_code=44,
    )

    with runner, pytest.raises(HarnessError, match="it was not started, or not installed"):
        Guest("noble", runner).cloud_init_report()
