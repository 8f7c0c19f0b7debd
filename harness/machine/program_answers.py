"""Stores output of the host's programs, such as QEMU's list of devices, for later runs.

Running QEMU to get this list takes as long as restoring a machine. A stored answer is valid until
the program's file changes.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.foreign_json import parse_json
from harness.lease import make_private_folder
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.provisioning.command import Argv, Runner


class ProgramAnswers:
    """Stores answers in the file `kept`; if that file is unusable, the programs run again."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def answer(self, program: str, question: str, ask: Callable[[], str | None]) -> str | None:
        """Return the stored answer to `question`, or else the result of `ask`; None is not stored."""
        place = shutil.which(program)
        if place is None:
            return ask()
        # The file's identity is read before the program runs, since the file may be replaced
        # meanwhile.
        file = _identity_of(Path(place))
        known = self._of(place, file)
        if question in known:
            return known[question]
        answer = ask()
        if answer is not None:
            self._keep(place, file, {**known, question: answer})
        return answer

    def _of(self, place: str, file: list[int]) -> dict[str, str]:
        entry = self._read().get(place)
        if not isinstance(entry, dict) or entry.get("file") != file:
            return {}
        answers = entry.get("answers")
        if not isinstance(answers, dict):
            return {}
        return {str(question): str(answer) for question, answer in answers.items()}

    def _read(self) -> dict[str, object]:
        try:
            content = parse_json(self._kept.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _keep(self, place: str, file: list[int], answers: Mapping[str, str]) -> None:
        entries = {**self._read(), place: {"file": file, "answers": answers}}
        make_private_folder(self._kept.parent)
        beside = self._kept.with_name(f"{self._kept.name}.{secrets.token_hex(4)}")
        try:
            beside.write_text(json.dumps(entries))
            beside.replace(self._kept)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


def _identity_of(program: Path) -> list[int]:
    stat = program.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


class RememberingRunner:
    """Runs a command only if no output is stored from an earlier run; failures are not stored."""

    def __init__(self, runner: Runner, answers: ProgramAnswers) -> None:
        self._runner = runner
        self._answers = answers

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run `argv`, or return its stored output, even if `stdin` and `env` were different."""
        failed: list[CommandResult] = []

        def ask() -> str | None:
            result = self._runner.run(argv, timeout_s=timeout_s, stdin=stdin, env=env)
            if result.ok:
                return json.dumps([result.stdout, result.stderr])
            failed.append(result)
            return None

        answer = self._answers.answer(argv[0], json.dumps(list(argv[1:])), ask)
        if answer is None:
            return failed[0]
        stdout, stderr = parse_json(answer)
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=stdout, stderr=stderr)
