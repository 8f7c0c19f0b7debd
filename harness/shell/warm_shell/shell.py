"""The class of the `shell` fixture: sets up the code under test and its mocks, and evaluates code.

The module `warm_shell` controls the bash process that runs the code.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, ExpectationError, HarnessError, RequirementError
from harness.shell.lexer import RESERVED_WORDS, quote, quote_on_lines
from harness.shell.mocks import call_order
from harness.shell.mocks.commands import MockedCommand, UnmockedCommandError
from harness.shell.mocks.lookups import is_looked_up, looked_up, looked_up_in_file
from harness.shell.mocks.names import can_be_function, check_mock_name, mentioned_paths
from harness.shell.mocks.registry import MockRegistry
from harness.shell.mocks.scripts import mock_script
from harness.shell.sandbox import SandboxKind
from harness.shell.sandbox.root_files import RootFiles
from harness.shell.value_checks import encode, require_text, require_whole_number, unexpected
from harness.shell.warm_shell.extraction import extract_function, options_of, shebang_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.shell.mocks.commands import Call
    from harness.shell.warm_shell.evaluation import Evaluation
    from harness.shell.warm_shell.pool import WarmShellPool
    from harness.shell.warm_shell.warm_shell import WarmShell

_COMMAND = re.compile(rf"(?!(?:{'|'.join(RESERVED_WORDS)})\Z)[\w./:+@,-]+\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ_ONLY = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
_HIGHEST_MODE = 0o7777
_NEEDED_BUILTINS = frozenset({"builtin", "local", "return"})
_NOT_REPLACED = frozenset({"bash"})
"""Commands whose files are not replaced by mocks: the scripts of the mocks need bash."""


class Shell:
    """Shell code under test: its functions, its mocks, and its results."""

    def __init__(self, warm_shells: WarmShellPool, *, virtual: bool, timeout_s: float) -> None:
        self._warm_shells = warm_shells
        self._code: list[str] = []
        self._is_mocked_at_start = False
        self._warm_shell: WarmShell | None = None
        self._mocks = MockRegistry()
        self._environment: dict[str, str] = {}
        self._prelude: list[str] = []
        self._files: list[tuple[str, bytes, int]] = []
        self._removed: list[str] = []
        self._scripts: list[Path] = []
        self._placed: set[Path] = set()
        self._allowed: set[str] = set()
        self._faked: set[Path] = set()
        self.virtual = virtual
        self.timeout_s = timeout_s

    # --- the code under test -------------------------------------------------------------

    def source(
        self, *paths: Path | str, env: Mapping[str, str] | None = None, mocked: bool = False
    ) -> None:
        """Source scripts into the warm shell; tests that source the same scripts share a shell.

        Paths are relative to pytest's root directory. The variables of `env` are exported before
        the scripts are sourced. By default, no command is mocked while the scripts are sourced.
        With `mocked=True`, the mocks that the test has defined apply while the scripts are sourced,
        and other tests do not share the shell. Raises HarnessError if a file is missing, or if the
        test has already evaluated code or used the code's root directory.
        """
        self._expect_not_started("source")
        self._is_mocked_at_start = self._is_mocked_at_start or mocked
        _require_variables(env or {})
        exports = "".join(f"export {n}={quote(v)}\n" for n, v in (env or {}).items())
        for path in paths:
            self._scripts.append(self._script(path))
            found = quote(str(self._script(path)))
            self._code.append(f"{exports}__SOURCED__={found} . {found}")
            exports = ""
        if exports:
            self._code.append(exports)

    def extract(self, path: Path | str, *functions: str) -> None:
        """Define only the named functions of a script that can't be sourced.

        The shell options that the script sets outside of functions, by `set`, `shopt` or its
        shebang, are set before the functions are defined. Raises HarnessError if the file or a
        function is missing.
        """
        self._expect_not_started("extract")
        for name in functions:
            require_text(name, source="the name of a function")
        script = self._script(path)
        self._scripts.append(script)
        self._code.append(options_of(script.read_text(errors="surrogateescape")))
        for name in functions:
            text, line = extract_function(script, name)
            self._code.append(f". {quote(str(self._warm_shells.copy_of(script, text, line)))}")

    def _script(self, path: Path | str) -> Path:
        _require_path(path, source="the path of a script")
        found = self._warm_shells.cwd / path
        if not _is_file(found):
            raise HarnessError(f"There is no script '{found}'.")
        return found

    def _expect_not_started(self, what: str) -> None:
        if self._warm_shell is not None:
            raise HarnessError(
                f"'{what}' comes too late: the test has already evaluated code or used the root. "
                f"Call '{what}' first."
            )

    def setenv(self, **variables: str) -> None:
        """Export variables for all evaluations of this test; the variables are not set while scripts are sourced."""
        _require_variables(variables)
        self._environment.update(variables)

    def define(self, code: str) -> None:
        """Run shell code before each evaluation of this test, to define functions and variables."""
        require_text(code, source="the code")
        self._prelude.append(code)

    # --- commands ------------------------------------------------------------------------

    def mock(
        self, name: str, *, reads_stdin: bool = False, optional: bool = False
    ) -> MockedCommand:
        """Mock a command or function; functions and child processes of the code see the mock.

        Without rules the mock succeeds and prints nothing. A mock whose name has no slash answers
        calls by an absolute path too. Rules of an `optional` mock may stay unused.

        A second mock of the same name replaces the first mock. If the replaced mock has unused
        rules, the test fails, unless the replaced mock is `optional`. Mocks in shared fixtures
        should be `optional`.
        """
        check_mock_name(name, source="the name of a mock")
        if name in _NEEDED_BUILTINS:
            raise BadInputError(
                f"'{name}' can't be mocked, since the harness itself runs this command to answer for mocks.",
                source="the name of a mock",
            )
        command = MockedCommand(
            name, self._mocks.calls, reads_stdin=reads_stdin, optional=optional
        )
        self._mocks.add(command)
        return command

    def spy(self, name: str) -> MockedCommand:
        """Record the calls of a command or function, but let the real command or function run."""
        return self.mock(name).calls_through()

    def allow(self, *names: str) -> None:
        """Let the code run these commands of the host, in the throw-away root.

        To allow the commands even while scripts are sourced, call this method before any code is
        evaluated.
        """
        for name in names:
            check_mock_name(name, source="the name of an allowed command")
            found = self._warm_shells.places_of(name)
            if not found:
                raise HarnessError(f"This host has no command '{name}' that could be allowed.")
            if self._warm_shell is None:
                self._allowed.add(Path(name).name)
                continue
            self._removed.extend(
                str(folder / name)
                for folder in self._warm_shells.denying_folders
                if folder / name not in found
            )
            for place in found:
                self.write(place, place.read_bytes(), mode=0o755)

    def hide(self, *names: str) -> None:
        """Let the code run as if this host lacked these commands."""
        for name in names:
            check_mock_name(name, source="the name of a hidden command")
        self._mocks.hidden.update(names)
        folders = [*self._warm_shells.command_folders, self._warm_shells.scratch / "known"]
        self._removed.extend(str(folder / name) for folder in folders for name in names)
        if self._warm_shell is not None:
            self._put_files(self._warm_shell)

    # --- files ---------------------------------------------------------------------------

    def write(self, path: Path | str, text: str | bytes, mode: int = 0o644) -> None:
        """Write a file for the code under test; make missing parent directories.

        A file below `/sys` or `/proc` hides the kernel's file with the same path.
        """
        _require_path(path, source="the path of a file")
        data = encode(text) if isinstance(text, str) else text
        if not isinstance(data, bytes):
            raise unexpected(text, "a text or bytes", source=f"the content of '{path}'")
        require_whole_number(mode, source=f"the mode of '{path}'")
        if not 0 <= mode <= _HIGHEST_MODE:
            raise BadInputError(
                f"A mode is a number from 0 to {_HIGHEST_MODE:#o}, not {mode:#o}.",
                source=f"the mode of '{path}'",
            )
        if not str(path).startswith("/"):
            raise HarnessError(
                f"The throw-away root needs an absolute path, but '{path}' is not one."
            )
        self._files.append((str(path), data, mode))
        if self._warm_shell is not None:
            self._put_files(self._warm_shell)

    def path(self, path: Path | str) -> Path:
        """Return the path on the host of a file that the code sees; links are followed.

        Background processes of the code could replace a directory on the returned path by a link.
        If background processes of the code may be running, use `files` instead of `path`.
        """
        return self.files.place(path)

    @property
    def files(self) -> RootFiles:
        """Return the files that the code sees; they can be read and changed even while the code runs."""
        return RootFiles(self.root)

    def _put_files(self, warm_shell: WarmShell) -> None:
        if (self._files or self._removed) and warm_shell.sandbox.kind is not SandboxKind.THROWAWAY:
            raise RequirementError(
                "Files for the code under test need the throw-away root; here they would be "
                f"written on the host. {warm_shell.sandbox.why}"
            )
        files = RootFiles(warm_shell.root)
        removed, self._removed = self._removed, []
        written, self._files = self._files, []
        for path in removed:
            files.remove(path)
        for path, data, mode in written:
            kernel_path = files.kernel_path(path)
            if kernel_path is not None and kernel_path not in self._faked:
                warm_shell.fake(kernel_path)
                self._faked.add(kernel_path)
            files.write(path, data, mode)

    @property
    def root(self) -> Path:
        """Return the path on the host of the code's root directory; `path` returns the path of one file."""
        return self.warm_shell.root

    # --- evaluation ----------------------------------------------------------------------

    def call(
        self, function: str, *arguments: str, stdin: str = "", errexit: bool = False, **env: str
    ) -> Evaluation:
        """Call a function or command in a fork of the warm shell.

        The fork has the warm shell's current options except `set -e`.

        With `errexit=True`, `set -e` is in effect: a command that fails ends the function, as in a
        script with `set -e`. Without `errexit=True`, the function continues after a command that
        fails, as a function does in a condition.
        """
        require_text(function, source="the function")
        for argument in arguments:
            require_text(argument, source=f"an argument of '{function}'")
        # without quotes, a word such as 'if', 'a=b' or '%1' would not be a command
        command = quote(function) if _COMMAND.match(function) else quote_on_lines(function)
        return self.evaluate(
            " ".join([command, *map(quote, arguments)]), stdin, env, errexit=errexit
        )

    def run_script(
        self, path: Path | str, *arguments: str, interpreter: str = "bash", stdin: str = "",
        **env: str,
    ) -> Evaluation:  # fmt: skip
        """Run a script in a new process, with bash, dash or BusyBox's ash.

        A relative path starts at pytest's root directory, as for `source`. Shell options in the script's first line, such as `#!/bin/bash -e`, apply. The script sees
        the mocks that child processes see.
        """
        _require_path(path, source="the path of a script")
        require_text(interpreter, source="the interpreter")
        for argument in arguments:
            require_text(argument, source=f"an argument of '{path}'")
        script = self._warm_shells.cwd / path
        options: list[str] = []
        if _is_file(script):
            options = shebang_options(script.read_text(errors="surrogateescape"))
            if script not in self._scripts:
                self._scripts.append(script)
                vars(self).pop("_texts", None)
                vars(self).pop("_looked_up", None)
        words = [*interpreter.split(), *options, str(script), *arguments]
        return self.evaluate(" ".join(quote(word) for word in words), stdin, env)

    def evaluate(
        self,
        code: str,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        *,
        errexit: bool = False,
    ) -> Evaluation:
        """Evaluate bash code of one or more commands; the docstring of `call` explains `errexit`.

        Raises UnmockedCommandError if the code ran a command that the test does not expect, and
        HarnessError if the code can't be parsed.
        """
        require_text(code, source="the code")
        require_text(stdin, source="stdin", may_have_nul=True)
        _require_variables(env or {})
        warm_shell = self.warm_shell
        self._mocks.violations.clear()
        prelude = self._prepare(warm_shell, code, {**self._environment, **(env or {})})
        try:
            result = warm_shell.evaluate(
                prelude, code, stdin, self._mocks, self.timeout_s, errexit=errexit
            )
        except BaseException:  # an effect may raise any error, while the shell waits for a reply
            self._warm_shells.discard(warm_shell)
            self._warm_shell = None
            raise
        if self._mocks.violations:
            violations = "\n".join(self._mocks.violations)
            raise UnmockedCommandError(f"{violations}\n{result.streams()}")
        return result

    @property
    def warm_shell(self) -> WarmShell:
        """Return the test's warm shell; the first access sources the code under test."""
        if self._warm_shell is None:
            self._warm_shell = self._warm_shells.borrow(
                tuple(self._code),
                virtual=self.virtual,
                allowed=frozenset(self._allowed),
                mocks=self._mocks if self._is_mocked_at_start else None,
            )
            self._placed.clear()
            self._faked.clear()
            self._put_files(self._warm_shell)
        return self._warm_shell

    def _prepare(self, warm_shell: WarmShell, code: str, env: Mapping[str, str]) -> str:
        """Install the mocks; return the code that the shell runs before the evaluated code."""
        names = list(self._mocks.commands)
        spies = [name for name in names if self._mocks.commands[name].is_spy()]
        warm_shell.write_mocks(name for name in names if "/" not in name)
        self._replace_files(warm_shell, [name for name in names if name not in spies], code)
        reads = " ".join(name for name in names if self._mocks.reads_stdin(name))
        plain = " ".join(name for name in names if name not in spies)
        lines = [f"export {name}={quote(value)}" for name, value in env.items()]
        lines.append(
            f"export PATH={quote(str(warm_shell.mocked))}:$PATH HX_READS_STDIN={quote(reads)}"
        )
        lines.append(f"__hx_mocked={quote(f' {plain} ')}")
        lines.extend(
            f"if builtin declare -F {quote(name)} >/dev/null; then "
            f"__hx_real=$(builtin declare -f -- {quote(name)}); "
            f'eval "function __hx_real_${{__hx_real#function }}"; fi'
            for name in spies
        )
        asked = self._looked_up.union(*map(looked_up, [code, *self._prelude]))
        for name in filter(can_be_function, names):
            # if code looks up a mock's path, the mock is a file, and is also a function only if it
            # replaces a function
            is_file = name not in spies and is_looked_up(name, asked)
            condition = f"if builtin declare -F {quote(name)} >/dev/null; then " if is_file else ""
            # remove an exported function of that name, so that child processes find the mock on PATH
            lines.append(
                f"{condition}builtin unset -f -- {quote(name)}\n"
                f"function {name} {{ {{ local -; builtin set +x; }} 2>/dev/null; "
                f'__hx_answer {quote(name)} "$@"; }}{"; fi" if condition else ""}'
            )
        return "\n".join([*lines, *self._prelude])

    def _replace_files(self, warm_shell: WarmShell, names: list[str], code: str) -> None:
        """Replace the files of mocked commands in the code's root directory by mock scripts.

        Calls by an absolute path then reach the mocks.
        """
        if warm_shell.sandbox.kind is not SandboxKind.THROWAWAY:
            return
        files = RootFiles(warm_shell.root)
        for name in names:
            if name in _NOT_REPLACED:
                continue
            if "/" in name:
                paths = [self._warm_shells.cwd / name]
            else:
                paths = self._unreported_paths(name, code)
            for path in paths:
                if path not in self._placed:
                    self._placed.add(path)
                    files.remove(path)
                    files.write(path, os.fsencode(mock_script(name)), 0o755)

    def _unreported_paths(self, name: str, code: str) -> list[Path]:
        """Return those paths of a command at which no script reports calls.

        A path with a script that reports calls is left out, because this script asks the harness
        for the answer of the mock. No script reports the calls of an allowed command, or of a
        command in a directory that has no commands on this host.
        """
        is_allowed = name in self._warm_shells.allowed or name in self._allowed
        paths = self._warm_shells.places_of(name) if is_allowed else []
        for text in (code, *self._texts):
            for mentioned in map(Path, mentioned_paths(name, text)):
                if is_allowed or not self._warm_shells.is_reported(mentioned):
                    paths.append(mentioned)
        return paths

    @functools.cached_property
    def _looked_up(self) -> frozenset[str]:
        return frozenset[str]().union(*map(looked_up_in_file, self._scripts))

    @functools.cached_property
    def _texts(self) -> list[str]:
        return [script.read_text(errors="surrogateescape") for script in self._scripts]

    # --- expectations --------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Return all calls of mocked commands, in order."""
        return list(self._mocks.calls)

    def assert_calls(self, *expected: str) -> None:
        """Fail unless exactly the `expected` calls of mocked commands happened, in this order.

        Each expected call is a line of shell code.

        A word may be a shell pattern; `...` as the last word matches all further arguments; a
        line `...` matches any number of calls.
        """
        call_order.assert_calls(self._mocks.calls, expected)

    def assert_order(self, *expected: str) -> None:
        """Fail unless the `expected` calls of mocked commands happened in this order.

        Other calls may happen between the expected calls.

        Each expected call is written as for `assert_calls`.
        """
        call_order.assert_order(self._mocks.calls, expected)

    def finish(self, *, has_failed: bool = False) -> None:
        """Give the warm shell back to the pool; fail if the test expected calls that did not happen.

        If the test has failed already, unused rules of mocks are not reported.
        """
        if self._warm_shell is not None:
            self._warm_shells.give_back(self._warm_shell)
            self._warm_shell = None
        unused = self._mocks.take_unused_rules()
        if unused and not has_failed:
            lines = "\n".join(f"  {rule}" for rule in unused)
            raise ExpectationError(f"The test expects calls that did not happen:\n{lines}")


def _require_variables(variables: Mapping[str, str]) -> None:
    """Raise BadInputError for a variable that bash can't export."""
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(str(name)):
            raise BadInputError(
                f"A variable can't be called {name!r}: a name has letters, digits and '_', and no "
                "digit at its start.",
                source="the name of a variable",
            )
        if name in _READ_ONLY:
            raise BadInputError(
                f"bash does not let code change '{name}'.", source="the name of a variable"
            )
        require_text(value, source=f"the variable '{name}'")


def _require_path(path: object, *, source: str) -> None:
    if not isinstance(path, (str, Path)):
        raise unexpected(path, "a path", source=source)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no file can have this path
        return False
