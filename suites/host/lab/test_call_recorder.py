"""The program that records the calls of a command and then runs the real command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.lab.call_recorder import CALLS, CallRecorder, RecordedCall, parse_calls
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path


def test_real_command_runs_and_its_call_is_recorded(tmp_path: Path) -> None:
    log, before, real = tmp_path / "log", tmp_path / "sbin", tmp_path / "bin"
    for folder in (before, real):
        folder.mkdir()
    for file in CallRecorder(["tool", "absent", "here"]).files:
        path = before / file.path.rpartition("/")[2]
        path.write_bytes(file.content.replace(CALLS.encode(), str(log).encode()))
        path.chmod(file.mode)
    (tmp_path / "folder/tool").mkdir(parents=True)
    names = ("log", "real", "rest", "folder", "file", "words", "code")
    (real / "tool").write_text(
        f'#!/bin/sh\necho "$# $2"\ncat\necho {" ".join(f"${each}" for each in names)}\nexit 7\n'
    )
    (tmp_path / "folder/here").write_text("#!/bin/sh\necho here\n")
    for program in (real / "tool", tmp_path / "folder/here"):
        program.chmod(0o755)

    result = LocalRunner().run(
        [
            *("sh", "-c"),
            # An empty entry of PATH is the working directory.
            "tool 'a b' 'c\n' ''; echo $?; absent; echo $?; cd $0; PATH=${PATH%%:*}::/bin here",
            str(tmp_path / "folder"),
        ],
        timeout_s=30,
        stdin="said\n",
        env={
            "PATH": f"{before}/:{before}:{tmp_path / 'folder'}:{real}:/usr/bin:/bin",
            **{each: f"{each}'s" for each in names},
        },
    )

    kept = " ".join(f"{each}'s" for each in names)
    assert result.stdout == (f"3 c\n\nsaid\n{kept}\n7\n127\nhere\n")
    assert parse_calls(log.read_text()) == [
        RecordedCall(argv=("tool", "a b", "c\n", ""), exit_code=7),
        RecordedCall(argv=("absent",), exit_code=127),
        RecordedCall(argv=("here",), exit_code=0),
    ]
