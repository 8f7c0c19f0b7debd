"""Runs the code of a `Parameters:dynamic` block to learn its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.shell.words import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.provisioning.command import Runner

_ROWS_TIMEOUT_S = 30.0


class ShellRowEvaluator:
    """Evaluates rows in a fresh bash; the code sees literals, `%const` and the environment."""

    def __init__(self, runner: Runner, source: str) -> None:
        self.runner = runner
        self.source = source

    def __call__(self, code: str, *, line: int) -> Sequence[tuple[str, ...]]:
        script = f"__hx_rows() {{\n{code}\n}}\n__hx_rows </dev/null\n"
        prelude = "set -eu\n__hx_data_row() { printf '%s\\0' $# \"$@\"; }\n"
        ran = self.runner.run(
            ["bash", "-c", f"eval {quote(prelude + script)}"], timeout_s=_ROWS_TIMEOUT_S
        )
        if not ran.ok or ran.stderr:
            raise BadInputError(
                f"The parameters could not be evaluated.\n{ran.render()}",
                source=self.source,
                line=line,
            )
        fields = iter(ran.stdout.split("\0")[:-1])
        return [tuple(next(fields) for _ in range(int(count))) for count in fields]
