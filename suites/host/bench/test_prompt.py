"""How the times of `harness shell` are measured, with a script in place of `harness shell`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.bench.prompt import measure_prompt, seconds_of_command
from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

#: A script that plays `python -m harness.cli shell OPTIONS`, and bash in a guest.
SHELL = r"""#!/bin/sh
[ "$*" = "-m harness.cli shell --image=mine" ] || exit 64
printf '[machines] wait: for room\r\nroot@clone:~# '
read -r line
[ "$line" = "echo answ''ered" ] || exit 65
sleep 0.2
printf 'answered\nroot@clone:~# '
read -r line
[ "$line" = exit ]
"""
COMMAND = '[ "$*" = "-m harness.cli shell --image=mine -- true" ]\n'


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def _write(program: Path, script: str) -> None:
    program.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}")
    program.chmod(0o755)


def test_prompt_benchmark_measures_the_prompt_and_the_first_answer_of_a_shell(
    program: Path,
) -> None:
    _write(program, SHELL)

    times = measure_prompt(["--image=mine"])

    assert 0 < times.prompt_s < times.answer_s - 0.2


def test_command_benchmark_measures_until_the_command_ends(program: Path) -> None:
    _write(program, COMMAND)

    assert seconds_of_command(["--image=mine"]) > 0


def test_measured_command_may_write_python_bytecode(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    _write(program, '[ -z "$PYTHONDONTWRITEBYTECODE" ]\n')

    assert seconds_of_command([]) > 0


def test_error_for_a_shell_without_a_prompt_quotes_its_output(program: Path) -> None:
    _write(program, "echo 'harness: there is no QEMU'; exit 2\n")

    with pytest.raises(HarnessError, match=r"expected to continue.*there is no QEMU"):
        measure_prompt([])


def test_failure_of_a_benchmarked_command_is_a_harness_error(program: Path) -> None:
    _write(program, "exit 3\n")

    with pytest.raises(
        HarnessError, match=r"`harness shell -- true` ended with the exit code 3\."
    ):
        seconds_of_command([])
