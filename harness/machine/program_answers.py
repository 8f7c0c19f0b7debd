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

from harness.foreign_json import parse_json, parse_json_object
from harness.lease import make_private_folder
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.provisioning.command import Argv, Runner


def read_cached(path: Path) -> dict[str, object]:
    """Return the JSON object in the cache file `path`, or {} if the file is missing or unusable."""
    try:
        return parse_json_object(path.read_text())
    except (OSError, ValueError):
        return {}


def write_cached(path: Path, content: Mapping[str, object]) -> None:
    """Replace the content of the cache file `path`. After an OSError, the file is unchanged."""
    make_private_folder(path.parent)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(json.dumps(content))
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


class ProgramAnswers:
    """Stores answers in the file `kept`. The programs run again if the file is unusable."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def answer(self, program: str, question: str, ask: Callable[[], str | None]) -> str | None:
        """Return the stored answer to `question`, or else the result of `ask`.

        A result of None is not stored.
        """
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
            entry = {"file": file, "answers": {**known, question: answer}}
            write_cached(self._kept, {**read_cached(self._kept), place: entry})
        return answer

    def _of(self, place: str, file: list[int]) -> dict[str, str]:
        entry = read_cached(self._kept).get(place)
        if not isinstance(entry, dict) or entry.get("file") != file:
            return {}
        answers = entry.get("answers")
        if not isinstance(answers, dict):
            return {}
        return {str(question): str(answer) for question, answer in answers.items()}


def _identity_of(program: Path) -> list[int]:
    stat = program.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


class RememberingRunner:
    """Runs a command only if no output is stored from an earlier run. Failures are not stored."""

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
        try:
            stdout, stderr = map(str, parse_json(answer))
        except (TypeError, ValueError):
            # The file of answers is damaged.
            return self._runner.run(argv, timeout_s=timeout_s, stdin=stdin, env=env)
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=stdout, stderr=stderr)
