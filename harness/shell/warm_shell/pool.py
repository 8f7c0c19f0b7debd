"""Keeps warm shells (bash processes that have sourced the code under test) for all tests of one worker."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError, naming
from harness.shell.coverage import Hits, any_uses_trace, merge, parse_trace
from harness.shell.mocks.allowed_commands import (
    ALLOWED_COMMANDS,
    KNOWN_COMMANDS,
    command_folders,
    denied_in,
    searched_path,
    write_denied_commands,
)
from harness.shell.sandbox import SandboxKind
from harness.shell.warm_shell.warm_shell import ShellStart, WarmShell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.shell.mocks.registry import MockRegistry
    from harness.shell.sandbox import Sandbox

_MOST_IDLE = 8
TRACE = Path(__file__).with_name("trace.sh")
"""The script that bash sources to trace itself; it is also the BASH_ENV of a machine's services."""


class WarmShellPool:
    """Keeps idle warm shells between tests: one for each set of sourced scripts.

    `allowed` lists the commands of the host that code under test may run in addition to harmless
    commands, which are always allowed. `coverage_of` lists files and directories whose executed
    lines are recorded in `hits`.
    """

    def __init__(
        self,
        *,
        cwd: Path,
        scratch: Path,
        sandbox: Sandbox,
        allowed: Iterable[str] = (),
        coverage_of: Sequence[Path] = (),
    ) -> None:
        self.cwd = cwd
        self.scratch = scratch
        self.sandbox = sandbox
        self.allowed = ALLOWED_COMMANDS | set(allowed)
        self.coverage_of = tuple(coverage_of)
        self.hits: Hits = {}
        self._idle: dict[tuple[tuple[str, ...], bool, ShellStart], WarmShell] = {}
        self._copies: dict[str, Path] = {}
        self._starts: dict[frozenset[str], ShellStart] = {}
        self._count = 0

    @functools.cached_property
    def command_folders(self) -> list[Path]:
        """Return the directories that hold commands of the host."""
        return command_folders(os.environ.get("PATH", os.defpath), self.cwd)

    def places_of(self, name: str) -> list[Path]:
        """Return the paths of the host's command `name` that this user can read."""
        places = [folder / name for folder in self.command_folders]
        return [place for place in places if os.access(place, os.R_OK) and place.is_file()]

    @functools.cached_property
    def denying_folders(self) -> list[Path]:
        """Return the directories in which the commands of `KNOWN_COMMANDS` are denied.

        Commands that this host lacks are denied too.
        """
        return command_folders("", self.cwd)

    def _write_layer(self, name: str, allowed: frozenset[str]) -> Path:
        layer = self.scratch / name
        layer.mkdir()
        for folder in self.command_folders:
            denied = self._denied_in(folder, allowed)
            write_denied_commands(layer / folder.relative_to("/"), denied)
        return layer

    def _denied_in(self, folder: Path, allowed: frozenset[str]) -> list[str]:
        denied = denied_in(folder, allowed)
        if folder not in self.denying_folders:
            return denied
        absent = [name for name in KNOWN_COMMANDS if not (folder / name).exists()]
        return [*denied, *(name for name in absent if name not in allowed)]

    def is_reported(self, path: Path) -> bool:
        """Return whether the denied command at `path` is replaced by a script that reports the command's calls."""
        if path.parent.resolve() not in self.command_folders:
            return False
        known = path.name in KNOWN_COMMANDS and path.parent.resolve() in self.denying_folders
        return known or os.access(path, os.X_OK)

    @functools.cached_property
    def _start(self) -> ShellStart:
        """Return the start parameters; write the scripts that replace denied commands."""
        path = searched_path(os.environ.get("PATH", os.defpath))
        known = self.scratch / "known"
        write_denied_commands(known, sorted(set(KNOWN_COMMANDS) - self.allowed))
        if self.sandbox.kind is SandboxKind.THROWAWAY:
            layer = self._write_layer("denied", frozenset(self.allowed))
            path = f"{path}:{known}"
        else:
            layer = None
            found = {n for folder in self.command_folders for n in denied_in(folder, self.allowed)}
            write_denied_commands(known, sorted(found - set(KNOWN_COMMANDS)))
            path = f"{known}:{path}"
        return ShellStart(
            cwd=self.cwd, sandbox=self.sandbox, path=path, layer=layer,
            traces=bool(self.coverage_of),
            traces_by_trap=bool(self.coverage_of) and any_uses_trace(self.coverage_of),
        )  # fmt: skip

    def _start_with(self, allowed: frozenset[str]) -> ShellStart:
        """Return the start parameters of shells whose test allows further commands of the host."""
        if allowed not in self._starts:
            if self.sandbox.kind is not SandboxKind.THROWAWAY:
                raise RequirementError(
                    "A test can allow commands only in the throw-away root; here they would run "
                    f"on the host. {self.sandbox.why}"
                )
            name = f"denied-{len(self._starts)}"
            layer = self._write_layer(name, frozenset(self.allowed) | allowed)
            self._starts[allowed] = replace(self._start, layer=layer)
        return self._starts[allowed]

    def copy_of(self, script: Path, text: str, line: int) -> Path:
        """Write `text`, the part of a script from line `line`, to a new file at the same line number.

        With the same line number, bash's messages and the coverage refer to lines of the original
        script.
        """
        content = "\n" * (line - 1) + text + "\n"
        digest = hashlib.sha256(
            f"{script}\0{content}".encode(errors="surrogateescape")
        ).hexdigest()
        folder = self.scratch / "parts" / digest[:16]
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / script.name
        copy.write_text(content, errors="surrogateescape")
        self._copies[str(copy)] = script
        return copy

    def borrow(
        self,
        code: tuple[str, ...],
        *,
        virtual: bool,
        allowed: frozenset[str] = frozenset(),
        mocks: MockRegistry | None = None,
    ) -> WarmShell:
        """Return a shell that has run `code`: an idle shell, or else a new shell.

        The shell may run the `allowed` commands, besides the commands that all tests may run. If
        `mocks` is given, a new shell runs the code with these mocks, and no other test uses this
        shell.
        """
        with naming(self.scratch):
            start = self._start_with(allowed) if allowed else self._start
            found = self._idle.pop((code, virtual, start), None) if mocks is None else None
            if found is not None:
                return found
            self._count += 1
            scratch = self.scratch / str(self._count)
            scratch.mkdir(mode=0o700)
            return WarmShell(
                code=code, start=start, scratch=scratch, virtual=virtual, mocks=mocks
            )  # fmt: skip

    def give_back(self, warm_shell: WarmShell) -> None:
        """Keep a shell that other tests may share and whose state can be reset; end any other shell."""
        key = (warm_shell.code, warm_shell.virtual, warm_shell.start)
        try:
            is_kept = (
                not warm_shell.serves_one_test and key not in self._idle and warm_shell.clear()
            )
        except BaseException:
            self.discard(warm_shell)
            raise
        if not is_kept:
            self.discard(warm_shell)
        else:
            self._idle[key] = warm_shell
            if len(self._idle) > _MOST_IDLE:
                self.discard(self._idle.pop(next(iter(self._idle))))

    def discard(self, warm_shell: WarmShell) -> None:
        """End a shell; add its coverage to `hits`."""
        warm_shell.close()
        if self.coverage_of:
            merge(
                self.hits,
                parse_trace(warm_shell.trace, self.cwd, self.coverage_of, copies=self._copies),
            )

    def close(self) -> None:
        """End all idle shells."""
        for warm_shell in self._idle.values():
            self.discard(warm_shell)
        self._idle.clear()
