"""Words after `--` are arguments of the command to run, wherever the options are."""

from __future__ import annotations

import pytest

from harness.cli import build_parser


def test_arguments_after_two_dashes_are_passed_to_the_started_program() -> None:
    rows: list[tuple[str, list[str], dict[str, object]]] = [
        ("resume DIR", [], {}),
        ("resume DIR -- ls -l", ["ls", "-l"], {}),
        ("resume DIR ls", ["ls"], {}),
        ("resume DIR ls -- -l", ["ls", "-l"], {}),
        ("resume DIR --qemu q -- ls -l", ["ls", "-l"], {"qemu": "q"}),
        ("resume --qemu q DIR -- ls --qemu x", ["ls", "--qemu", "x"], {"qemu": "q"}),
        ("resume DIR -- sh -- x", ["sh", "--", "x"], {}),
        ("rerun a.py::b --from cold -- -x -k c", ["-x", "-k", "c"], {"start": "cold"}),
        ("shell --machine m --", [], {"machine": "m"}),
    ]
    for line, words, options in rows:
        parsed = build_parser(line.split(maxsplit=1)[0]).parse_args(line.split())

        assert parsed.argv == words, line
        assert {name: getattr(parsed, name) for name in options} == options, line


def test_logs_command_accepts_a_machine_name_with_a_dash_after_two_dashes() -> None:
    parsed = build_parser("logs").parse_args(["logs", "--follow", "--", "-m"])

    assert parsed.machine == "-m"


def test_resume_refuses_a_missing_folder_or_unknown_option_before_two_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in ("resume -- DIR", "resume DIR --nope -- ls"):
        with pytest.raises(SystemExit):
            build_parser().parse_args(line.split())

        assert "usage: harness" in capsys.readouterr().err, line
