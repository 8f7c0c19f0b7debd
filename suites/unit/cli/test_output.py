"""The output of commands can't control a terminal, and errors are limited in length."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NoReturn

from harness.cli import doctor, main, migrate, payload
from harness.errors import HarnessError
from harness.provisioning.command import CommandError, CommandResult
from harness.provisioning.wait import WaitTimeoutError

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\udce9"
ERRORS = [
    HarnessError(EVIL),
    CommandError("It", CommandResult(argv=(EVIL,), exit_code=1, stdout=EVIL, stderr=EVIL)),
    OSError(2, "No such file or directory", EVIL),
    OSError(EVIL),
]


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)


def test_control_characters_in_an_error_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in ERRORS:
        failing(monkeypatch, error)

        main(["doctor"])

        said = capsys.readouterr().err
        assert "\\x1b]0;owned" in said
        assert said.replace("\n", "").isprintable()


def test_long_error_is_shortened_on_stderr_and_saved_whole_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Exception] = [
        HarnessError(EVIL + "y" * 20_000),
        CommandError(
            "It", CommandResult(argv=("x",), exit_code=1, stdout="y\n" * 10_000, stderr="")
        ),
        WaitTimeoutError("\0" * 20_000),
    ]
    for number, error in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        failing(monkeypatch, error)

        main(["doctor"])

        said = capsys.readouterr().err
        (kept,) = (folder / "gpu-node-harness/messages").iterdir()
        assert len(said) < 9000
        assert f"The whole text is in '{kept}'." in said
        assert kept.stat().st_size >= 20_000
        assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_long_error_that_can_not_be_saved_is_shortened_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    failing(
        monkeypatch,
        CommandError("It", CommandResult(argv=("x",), exit_code=1, stdout="y" * 9999, stderr="")),
    )

    assert main(["doctor"]) == 2

    assert "The whole text could not be saved." in capsys.readouterr().err


def test_error_of_the_operating_system_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, OSError(28, "No space left on device", "/x"))

    main(["doctor"])

    assert capsys.readouterr().err == "harness: '/x': No space left on device.\n"


def test_output_of_a_command_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show(*_: object) -> int:
        sys.stdout.write(f"{EVIL}\n{json.dumps({'name': EVIL})}\n")
        sys.stderr.write(f"{EVIL}\n")
        return 0

    monkeypatch.setattr(payload, "_build", show)

    main(["payload", "build"])

    said = capsys.readouterr()
    assert (said.out + said.err).replace("\n", "").isprintable()
    assert json.loads(said.out.splitlines()[1]) == {"name": EVIL}


def test_stdout_of_migrate_is_printed_unchanged_and_its_stderr_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def show(*_: object) -> int:
        sys.stdout.write("x = '\xad'\n")
        sys.stderr.write(EVIL)
        return 0

    monkeypatch.setattr(migrate, "run", show)

    main(["migrate", "a_spec.sh"])

    said = capsys.readouterr()
    assert said.out == "x = '\xad'\n"
    assert said.err.isprintable()


def test_command_without_open_standard_streams_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python has None in place of a stream that the caller closed."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)

    assert main(["docs", "no-such-page"]) == 2

    for stream in (sys.stdin, sys.stdout, sys.stderr):
        assert stream.fileno() > 2, "The number is the lowest that was free."
        stream.close()
