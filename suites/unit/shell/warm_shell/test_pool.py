"""What warm shells of a worker start with, before any is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import RequirementError
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.warm_shell.pool import WarmShellPool

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.warm_shell.warm_shell import WarmShell


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


def test_copy_of_a_part_has_its_lines_where_the_script_has_them(
    pool: WarmShellPool, tmp_path: Path
) -> None:
    script = tmp_path / "lib" / "install.sh"

    copy = pool.copy_of(script, "f() {\n}", 3)

    assert copy.name == "install.sh"
    assert copy.read_text() == "\n\nf() {\n}\n"
    assert pool.copy_of(script, "f() {\n}", 3) == copy
    assert (
        len({copy, *(pool.copy_of(*each) for each in ((script, "f() {\n}", 4), (script, "x", 3)))})
        == 3
    )


def test_command_is_reported_where_a_script_stands_in_its_place(
    pool: WarmShellPool, commands: Path, tmp_path: Path
) -> None:
    (commands / "readme").touch(mode=0o644)

    assert pool.is_reported(commands / "curl")
    assert not pool.is_reported(commands / "readme")
    assert not pool.is_reported(tmp_path / "curl")
    assert pool.places_of("curl") == [commands / "curl"]
    assert pool.places_of("absent") == []


class IdleShell:
    """Plays a warm shell; `is_clean` says whether it can be made as new."""

    def __init__(self, pool: WarmShellPool, name: str, *, is_clean: bool = True) -> None:
        self.code = (name,)
        self.virtual = False
        self.start = pool._start
        self.is_clean = is_clean
        self.is_closed = False

    def clear(self) -> bool:
        return self.is_clean

    def close(self) -> None:
        self.is_closed = True


def give_back(pool: WarmShellPool, shell: IdleShell) -> IdleShell:
    pool.give_back(cast("WarmShell", shell))
    return shell


def test_shell_is_kept_for_the_next_test_with_the_same_code_and_start(pool: WarmShellPool) -> None:
    shell = give_back(pool, IdleShell(pool, "a"))
    twin = give_back(pool, IdleShell(pool, "a"))
    spoilt = give_back(pool, IdleShell(pool, "b", is_clean=False))
    other = IdleShell(pool, "a")
    other.virtual = True
    give_back(pool, other)

    assert cast("object", pool.borrow(("a",), virtual=True)) is other
    assert (shell.is_closed, twin.is_closed, spoilt.is_closed) == (False, True, True)
    assert cast("object", pool.borrow(("a",), virtual=False)) is shell


def test_shells_that_were_idle_longest_end_first(pool: WarmShellPool) -> None:
    shells = [give_back(pool, IdleShell(pool, str(number))) for number in range(9)]

    assert [shell.is_closed for shell in shells] == [True, *[False] * 8]
    pool.close()
    assert all(shell.is_closed for shell in shells)
