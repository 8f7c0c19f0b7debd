"""What warm shells of a worker start with, before any is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.warm_shell.pool import WarmShellPool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Give a folder of a host that has these commands only."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cat", "curl", "tool", "wget"):
        (folder / name).touch(mode=0o755)
    return folder


@pytest.fixture
def pool(tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch) -> WarmShellPool:
    monkeypatch.setattr(
        "harness.shell.warm_shell.pool.command_folders", lambda path, _: [commands] if path else []
    )
    (tmp_path / "scratch").mkdir()
    return WarmShellPool(
        cwd=tmp_path,
        scratch=tmp_path / "scratch",
        sandbox=Sandbox(kind=SandboxKind.THROWAWAY),
        allowed=["tool"],
    )


def denied(pool: WarmShellPool, commands: Path, *allowed: str) -> list[str]:
    start = pool._start_with(frozenset(allowed)) if allowed else pool._start
    assert start.layer is not None
    return sorted(each.name for each in (start.layer / commands.relative_to("/")).iterdir())


def test_command_that_a_test_allows_is_allowed_beside_those_of_all_tests(
    pool: WarmShellPool, commands: Path
) -> None:
    assert denied(pool, commands) == ["curl", "wget"]
    assert denied(pool, commands, "curl") == ["wget"]
    assert denied(pool, commands, "wget") == ["curl"]
    assert pool._start_with(frozenset({"curl"})) is pool._start_with(frozenset({"curl"}))


def test_command_is_not_allowed_where_it_would_run_on_the_host(
    pool: WarmShellPool,
) -> None:
    pool.sandbox = Sandbox(kind=SandboxKind.REFUSE, why="There are no namespaces.")

    with pytest.raises(RequirementError, match=r"run on the host\. There are no namespaces\."):
        pool._start_with(frozenset({"curl"}))
