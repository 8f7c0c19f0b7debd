"""Runs the code of a `Parameters:dynamic` block; the code generates the rows of parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.lease import temporary_folder
from harness.shell.sandbox import check_entered
from harness.shell.shells import BASH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.command import Runner
    from harness.shell.sandbox import Sandbox
    from harness.shell.shells import SpecShell

_ROWS_TIMEOUT_S = 30.0
_ENVIRONMENT_FILE = """\
if [ -n "${HX_ENV_FROM-}" ]; then
  eval "$(. "$HX_ENV_FROM" >/dev/null 2>&1; export -p)"
fi
"""


class ShellRowEvaluator:
    """Runs, in a new and isolated shell, the code that generates the rows of a `Parameters:dynamic` block.

    The code sees the `%const` constants, and the environment variables of pytest and of `env`. The
    function `sandbox`, which chooses the sandbox, is called only for a file with a
    `Parameters:dynamic` block.
    """

    def __init__(
        self,
        runner: Runner,
        sandbox: Callable[[], Sandbox],
        *,
        source: str,
        cwd: Path,
        env: Mapping[str, str],
        shell: SpecShell = BASH,
    ) -> None:
        self.runner = runner
        self.sandbox = sandbox
        self.source = source
        self.cwd = cwd
        self.env = env
        self.shell = shell

    def __call__(self, code: str, *, line: int) -> Sequence[tuple[str, ...]]:
        # The code may use descriptors of its own. POSIX shells have only one digit for a descriptor.
        rows = 9 if self.shell.is_posix else 198
        script = f"__hx_rows() {{\n{code}\n}}\n__hx_rows {rows}>&1 >&2 </dev/null\n"
        prelude = f'set -eu\n__hx_data_row() {{ printf \'%s\\0\' "$#" "$@" >&{rows}; }}\n'
        command = [*self.shell.command, "-c", _ENVIRONMENT_FILE + prelude + script]
        with temporary_folder("harness-rows") as scratch:
            argv = self.sandbox().argv(command, cwd=self.cwd, scratch=scratch)
            ran = self.runner.run(argv, timeout_s=_ROWS_TIMEOUT_S, env=self.env)
        check_entered(ran.exit_code, ran.stderr)
        if not ran.ok or ran.stderr:
            shown = replace(ran, argv=tuple(command)).render()
            raise BadInputError(
                f"The code of this 'Parameters' block failed, or printed other text than rows.\n{shown}",
                source=self.source,
                line=line,
            )
        fields = iter(ran.stdout.split("\0")[:-1])
        return [tuple(next(fields) for _ in range(int(count))) for count in fields]
