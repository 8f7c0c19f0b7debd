"""`trim.sh`, which switches off one trim of the boot path, with fake programs that print their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.bench import time_to_gpu
from harness.bench.time_to_gpu.samples import Trim
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIM = Path(time_to_gpu.__file__).with_name("trim.sh")
_LOOK = "ctr -n k8s.io images ls -q name==registry/driver:1"
_REMOVE = "ctr -n k8s.io images rm registry/driver:1 mirror/driver:1"
_DEFER = "systemctl restart --no-block nvidia-dcgm-exporter"


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, Trim], str]:
    """Return a function that runs `trim.sh` for a command, and returns the command that it ran."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ctr", "systemctl"):
        (programs / name).write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        (programs / name).chmod(0o755)
        (tmp_path / name).write_bytes(_TRIM.read_bytes())
        (tmp_path / name).chmod(0o755)

    def command(words: str, trim: Trim) -> str:
        program, *arguments = words.split()
        return (
            LocalRunner()
            .run(
                [str(tmp_path / program), *arguments],
                timeout_s=10.0,
                env={"TRIM_OFF": trim.value, "TRIM_PROGRAMS": str(programs)},
            )
            .check(program)
            .stdout.strip()
        )

    return command


@pytest.mark.parametrize("words", [_LOOK, _REMOVE, _DEFER, "systemctl restart kubelet"])
def test_command_is_unchanged_if_all_trims_are_switched_on(
    run: Callable[[str, Trim], str], words: str
) -> None:
    assert run(words, Trim.NONE_OFF) == words


@pytest.mark.parametrize(
    ("trim", "words", "expected"),
    [
        (Trim.LOCAL_IMAGE, _LOOK, ""),
        (
            Trim.ASYNC_REMOVAL,
            _REMOVE,
            "ctr -n k8s.io images rm --sync registry/driver:1 mirror/driver:1",
        ),
        (Trim.DEFERRED, _DEFER, "systemctl restart nvidia-dcgm-exporter"),
    ],
)
def test_switched_off_trim_changes_the_command_that_it_trims(
    run: Callable[[str, Trim], str], trim: Trim, words: str, expected: str
) -> None:
    assert run(words, trim) == expected


@pytest.mark.parametrize("trim", list(Trim))
def test_switched_off_trim_does_not_change_other_commands(
    run: Callable[[str, Trim], str], trim: Trim
) -> None:
    for words in ("ctr -n k8s.io image pull registry/driver:1", "systemctl enable nvidia-dcgm"):
        assert run(words, trim) == words
