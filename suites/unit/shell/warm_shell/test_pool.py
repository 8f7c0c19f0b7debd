"""The start parameters of a worker's warm shells, and which shells the pool keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError, RequirementError
from harness.shell.coverage import Place
from harness.shell.mocks.registry import MockRegistry
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.warm_shell.pool import WarmShellPool

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.warm_shell.warm_shell import WarmShell


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Return the only folder with commands of a host."""
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


def test_command_allowed_by_a_test_is_not_denied_in_its_shell(
    pool: WarmShellPool, commands: Path
) -> None:
    assert denied(pool, commands) == ["curl", "wget"]
    assert denied(pool, commands, "curl") == ["wget"]
    assert denied(pool, commands, "wget") == ["curl"]
    assert pool._start_with(frozenset({"curl"})) is pool._start_with(frozenset({"curl"}))


def test_allowing_a_command_without_a_throwaway_root_is_refused(
    pool: WarmShellPool,
) -> None:
    pool.sandbox = Sandbox(kind=SandboxKind.REFUSE, why="There are no namespaces.")

    with pytest.raises(RequirementError, match=r"run on the host\. There are no namespaces\."):
        pool._start_with(frozenset({"curl"}))


def test_copy_of_a_part_of_a_script_keeps_the_line_numbers(
    pool: WarmShellPool, tmp_path: Path
) -> None:
    script = tmp_path / "lib" / "install.sh"

    copy = pool.copy_of(script, "f() {\n}", 3)

    assert copy.name == "install.sh"
    assert copy.read_text() == "\n\nf() {\n}\n"
    assert pool.copy_of(script, "f() {\n}", 3) == copy
    twin = tmp_path / "other" / "install.sh"
    others = ((script, "f() {\n}", 4), (script, "x", 3), (twin, "f() {\n}", 3))
    assert len({copy, *(pool.copy_of(*each) for each in others)}) == 4


def test_only_executables_in_command_folders_are_reported(
    pool: WarmShellPool, commands: Path, tmp_path: Path
) -> None:
    (commands / "readme").touch(mode=0o644)

    assert pool.is_reported(commands / "curl")
    assert not pool.is_reported(commands / "readme")
    assert not pool.is_reported(tmp_path / "curl")
    assert pool.places_of("curl") == [commands / "curl"]
    assert pool.places_of("absent") == []


class IdleShell:
    """Replaces a warm shell; `is_clean` is the result of `clear`."""

    def __init__(self, pool: WarmShellPool, name: str, *, is_clean: bool = True) -> None:
        self.code = (name,)
        self.virtual = False
        self.start = pool._start
        self.serves_one_test = False
        self.is_clean = is_clean
        self.is_closed = False
        self.trace = ""

    def clear(self) -> bool:
        return self.is_clean

    def close(self) -> None:
        self.is_closed = True


def give_back(pool: WarmShellPool, shell: IdleShell) -> IdleShell:
    pool.give_back(cast("WarmShell", shell))
    return shell


def test_idle_shell_is_reused_only_for_the_same_code_and_start_options(
    pool: WarmShellPool,
) -> None:
    shell = give_back(pool, IdleShell(pool, "a"))
    twin = give_back(pool, IdleShell(pool, "a"))
    spoilt = give_back(pool, IdleShell(pool, "b", is_clean=False))
    virtual, allowing = IdleShell(pool, "a"), IdleShell(pool, "a")
    virtual.virtual = True
    allowing.start = pool._start_with(allowed := frozenset({"curl"}))
    for other in (virtual, allowing):
        give_back(pool, other)

    assert cast("object", pool.borrow(("a",), virtual=False, allowed=allowed)) is allowing
    assert cast("object", pool.borrow(("a",), virtual=True)) is virtual
    assert (shell.is_closed, twin.is_closed, spoilt.is_closed) == (False, True, True)
    assert cast("object", pool.borrow(("a",), virtual=False)) is shell


def test_mocks_during_sourcing_need_a_new_shell(
    pool: WarmShellPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[MockRegistry] = []
    monkeypatch.setattr(
        "harness.shell.warm_shell.pool.WarmShell", lambda **words: started.append(words["mocks"])
    )
    shell = give_back(pool, IdleShell(pool, "a"))

    pool.borrow(("a",), virtual=False, mocks=(mocks := MockRegistry()))

    assert started == [mocks]
    assert cast("object", pool.borrow(("a",), virtual=False)) is shell


def test_coverage_of_a_closed_shell_and_of_a_failed_shell_is_kept(
    pool: WarmShellPool, tmp_path: Path
) -> None:
    def fail() -> bool:
        raise HarnessError("The throw-away root does not answer.")

    script = tmp_path / "a.sh"
    script.touch()
    pool.coverage_of = (script,)
    part = pool.copy_of(script, "f", 1)
    shells = [IdleShell(pool, name) for name in "aaab"]
    for number, shell in enumerate(shells, 1):
        shell.trace = f"+\x1e1\x1f{part if number == 1 else 'a.sh'}\x1f{number}\x1f/\x1e:\n"
    unclean, broken, *idle = shells
    unclean.is_clean = False
    broken.clear = fail  # type: ignore[method-assign]
    give_back(pool, unclean)
    with pytest.raises(HarnessError, match="does not answer"):
        give_back(pool, broken)
    for shell in idle:
        give_back(pool, shell)

    pool.close()

    assert all(shell.is_closed for shell in shells)
    assert pool.hits == {str(script): {Place(number, 1, 1) for number in range(1, 5)}}


def test_pool_ends_the_shell_that_was_idle_for_the_longest_time(pool: WarmShellPool) -> None:
    shells = [give_back(pool, IdleShell(pool, str(number))) for number in range(9)]

    assert [shell.is_closed for shell in shells] == [True, *[False] * 8]
    pool.close()
    assert all(shell.is_closed for shell in shells)
