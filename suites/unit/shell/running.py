"""Runs pytest on a folder of specs in a process of its own, as a user does."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner
from harness.shell.rows import ShellRowEvaluator
from harness.shell.sandbox import Sandbox, SandboxKind

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult

REPOSITORY = Path(__file__).parents[3]
_OUTCOME = re.compile(r"^(\S.*?) (PASSED|FAILED|SKIPPED|XFAIL|ERROR)\b", re.MULTILINE)


@dataclass(frozen=True)
class SpecProject:
    """A folder in which a test writes specs and runs them."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, *arguments: str) -> CommandResult:
        plugins = ["-p", "xdist.plugin", "-p", "harness.plugin.specfiles"]
        argv = [
            sys.executable, "-m", "pytest", *plugins, "-v", *arguments,
            f"--rootdir={self.root}", str(self.root),
        ]  # fmt: skip
        env = {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return LocalRunner().run(argv, timeout_s=60, env=env)


def row_evaluator(source: str) -> ShellRowEvaluator:
    """Return what runs `Parameters:dynamic` of a spec, in the throw-away root."""
    throwaway = Sandbox(kind=SandboxKind.THROWAWAY)
    return ShellRowEvaluator(LocalRunner(), lambda: throwaway, source=source, cwd=Path("/"))


def outcomes(result: CommandResult) -> dict[str, str]:
    """Return what became of each test, by the last part of its id."""
    return {
        found[1].split("::")[-1]: found[2].lower() for found in _OUTCOME.finditer(result.stdout)
    }
