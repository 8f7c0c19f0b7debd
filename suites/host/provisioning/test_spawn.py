"""Long-lived processes, which end when this process ends."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from harness.provisioning.command import PIPE, end, has_ended, spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

_STARTS_ANOTHER = """\
import sys
from harness.provisioning.command import spawn
print(spawn(["sleep", "600"]).pid, flush=True)
sys.stdin.read()
"""


def _is_gone(pid: int) -> Observation[bool]:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return Observation(True, "gone")
    return Observation(True if state == "Z" else None, f"process {pid} in state {state}")


def test_spawned_process_dies_when_its_parent_is_killed() -> None:
    parent = spawn([sys.executable, "-c", _STARTS_ANOTHER], stdin=PIPE, stdout=PIPE)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        was_alive = _is_gone(child).value is None
    finally:
        parent.kill()
        parent.communicate()

    wait_for("the child's end", lambda: _is_gone(child), Deadline.after(20), interval_s=0.01)

    assert was_alive


def test_process_does_not_begin_if_its_parent_died_before_the_death_signal_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent died before the death signal was set, so the process would get no signal."""
    monkeypatch.setattr("os.getpid", lambda: 2)

    process = spawn(["touch", str(tmp_path / "begun")])

    assert process.wait(20) == 125
    assert list(tmp_path.iterdir()) == []


def test_process_inherits_only_the_named_descriptors(tmp_path: Path) -> None:
    with (tmp_path / "named").open("w") as named, (tmp_path / "other").open("w") as other:
        process = spawn(
            ["ls", "/proc/self/fd"], stdout=PIPE, pass_fds=[named.fileno()], cwd=tmp_path
        )
        output, _ = process.communicate(timeout=20)
        seen = {int(word) for word in output.split()}

        assert named.fileno() in seen
        assert other.fileno() not in seen


def test_error_for_a_missing_setpriv_mentions_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(FileNotFoundError, match="setpriv"):
        spawn(["true"])


def test_end_kills_leftover_processes_of_the_process_group() -> None:
    process = spawn(["sh", "-c", "sleep 600 & echo $!; sleep 0.3"], stdout=PIPE)
    assert process.stdout is not None
    with process.stdout:
        left = int(process.stdout.readline())

    assert end(process, grace_s=20) == 0, "it has seconds, not milliseconds, to end itself"

    wait_for("the left one's end", lambda: _is_gone(left), Deadline.after(20), interval_s=0.01)


def test_end_of_a_process_is_detected_without_reaping_the_process() -> None:
    process = spawn(["sleep", "600"])
    assert not has_ended(process)

    process.kill()

    wait_for(
        "its end",
        lambda: Observation(has_ended(process) or None, "alive"),
        Deadline.after(20),
        interval_s=0.01,
    )
    assert process.returncode is None
    assert end(process) == -9
    assert has_ended(process)


def test_group_of_a_reaped_process_gets_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pid may belong to another process group by now."""
    process = spawn(["true"])
    process.wait(20)
    monkeypatch.setattr("os.killpg", lambda *_: pytest.fail("a foreign group got a signal"))

    assert end(process, grace_s=1) == 0


def test_spawn_in_a_process_with_another_pid_does_not_end_earlier_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = spawn(["sh", "-c", "echo begun; exec sleep 100"], stdout=PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"begun\n"
        with monkeypatch.context() as other:
            other.setattr("os.getpid", lambda: 2)
            end(spawn(["true"]))
        gc.collect()

        with pytest.raises(WaitTimeoutError):
            wait_for("an end", lambda: _is_gone(first.pid), Deadline.after(0.5), interval_s=0.01)
    finally:
        end(first)
        if first.stdout is not None:
            first.stdout.close()
