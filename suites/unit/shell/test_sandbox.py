"""Code under test is held away from the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import RequirementError
from harness.provisioning.command import CommandResult, LocalRunner
from harness.shell import sandbox as sandbox_module
from harness.shell.sandbox import Sandbox, SandboxKind, choose_sandbox, find_obstacle


def _run(kind: SandboxKind, script: str, scratch: Path) -> CommandResult:
    argv = Sandbox(kind=kind, process_limit=60).argv(
        ["sh", "-c", script], cwd=scratch, scratch=scratch
    )
    return LocalRunner().run(argv, timeout_s=20)


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    if find_obstacle(SandboxKind.THROWAWAY):
        pytest.skip(find_obstacle(SandboxKind.THROWAWAY))


def test_writes_and_deletions_do_not_reach_the_host(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    script = f"rm {kept} && echo new >/etc/harness-trial && cat /etc/harness-trial"

    result = _run(SandboxKind.THROWAWAY, script, tmp_path)

    assert result.stdout == "new\n", result.render()
    assert kept.read_text() == "old"
    assert not Path("/etc/harness-trial").exists()


@pytest.mark.parametrize("path", ["/proc/sys/vm/swappiness", "/sys/kernel/mm/ksm/run"])
def test_kernel_settings_cannot_be_changed(tmp_path: Path, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"This kernel has no {path}.")
    before = Path(path).read_text()

    result = _run(SandboxKind.THROWAWAY, f"echo 7 >{path}", tmp_path)

    assert not result.ok
    assert Path(path).read_text() == before


def test_only_own_processes_are_seen(tmp_path: Path) -> None:
    result = _run(SandboxKind.THROWAWAY, "ls /proc | grep -c '^[0-9]'", tmp_path)

    assert int(result.stdout) < 8


def test_exit_code_passes_through(tmp_path: Path) -> None:
    assert _run(SandboxKind.THROWAWAY, "exit 42", tmp_path).exit_code == 42


def test_too_many_processes_are_ended(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 100 ]; do sleep 30 & i=$((i+1)); done; wait"

    result = _run(SandboxKind.THROWAWAY, script, tmp_path)

    assert result.exit_code == sandbox_module.TOO_MANY_PROCESSES


def test_refusal_lets_only_the_own_places_be_written(tmp_path: Path) -> None:
    if find_obstacle(SandboxKind.REFUSE):
        pytest.skip(find_obstacle(SandboxKind.REFUSE))

    result = _run(SandboxKind.REFUSE, "echo x >inside; echo x >/etc/harness-trial", tmp_path)

    assert not result.ok
    assert (tmp_path / "inside").exists()
    assert not Path("/etc/harness-trial").exists()


def test_host_without_namespaces_gets_refusal_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obstacles = {SandboxKind.THROWAWAY: "no user namespaces", SandboxKind.REFUSE: ""}
    monkeypatch.setattr(sandbox_module, "find_obstacle", obstacles.__getitem__)

    chosen = choose_sandbox("auto")

    assert chosen.kind is SandboxKind.REFUSE
    assert "no user namespaces" in chosen.why
    with pytest.raises(RequirementError, match="no user namespaces"):
        choose_sandbox("throwaway")


def test_host_with_neither_refuses_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "find_obstacle", lambda kind: f"no {kind.value}")

    with pytest.raises(RequirementError, match="--shell-sandbox=off"):
        choose_sandbox("auto")
