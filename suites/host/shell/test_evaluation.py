"""What an evaluation of the `shell` fixture runs, and what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.testing import Shell


def test_message_on_sourcing_is_short(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("echo 'line of a long script' >&2\n" * 5000 + "exit 3\n")
    shell.source(script)

    with pytest.raises(HarnessError, match="exit code 3") as caught:
        shell.evaluate("true")
    message = str(caught.value)
    assert len(message.splitlines()) < 60
    assert str(script) in message


def test_killed_evaluation_has_nothing_of_the_one_before(shell: Shell) -> None:
    first = shell.evaluate("KEPT=1; sleep 5; echo out; echo err >&2")
    assert (first.variable("KEPT"), len(first.sleeps)) == ("1", 1)

    result = shell.evaluate("kill -KILL $BASHPID")

    assert (result.status, result.stdout, result.stderr) == (137, "", "")
    assert (result.variables, result.sleeps) == ({}, ())


class TestBackgroundJobs:
    """A job that one test leaves running calls no mock of the next; these two run in order."""

    def test_leaves_a_job(self, shell: Shell) -> None:
        shell.mock("curl")
        shell.evaluate("(while :; do curl early; /bin/sleep 0.01; done) & disown")

    def test_has_no_calls_of_it(self, shell: Shell) -> None:
        shell.mock("curl")
        shell.evaluate("/bin/sleep 0.3; ls /proc | grep -c '^[0-9]'")
        assert shell.calls == []
