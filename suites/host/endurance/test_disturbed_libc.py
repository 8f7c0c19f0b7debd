"""The library that moves the clock and slows the disk of the programs that load it."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from suites.endurance.time_faults import DisturbedLibc

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

_PROGRAM = """\
import os, sys, time

started = time.monotonic()
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"x")
    os.fsync(file.fileno())
print(time.time(), time.monotonic() - started)
"""


@pytest.fixture
def libc(tmp_path: Path) -> DisturbedLibc:
    return DisturbedLibc.build(tmp_path)


def seen(libc: DisturbedLibc, folder: Path) -> tuple[float, float]:
    """Return the time that a program reads from the clock, and the duration of its write, in seconds."""
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(folder / "file")]
    result = LocalRunner().run(argv, timeout_s=60, env=libc.environment).check("the program")
    now, taken = result.stdout.split()
    return float(now), float(taken)


def test_clock_of_programs_is_shifted_and_then_right_again(
    libc: DisturbedLibc, tmp_path: Path
) -> None:
    before, _ = seen(libc, tmp_path)
    libc.disturb(ahead_s=3600)
    ahead, _ = seen(libc, tmp_path)
    libc.disturb(ahead_s=-3600)
    behind, _ = seen(libc, tmp_path)
    libc.disturb()
    after, _ = seen(libc, tmp_path)
    assert 3600 <= ahead - before < 3700
    assert 3600 - 100 < before - behind <= 3600
    assert before <= after < before + 100


@pytest.mark.parametrize("slowed", ["write_us", "sync_us"])
def test_write_to_a_slow_disk_waits(libc: DisturbedLibc, tmp_path: Path, slowed: str) -> None:
    libc.disturb(**{slowed: 300_000})
    assert seen(libc, tmp_path)[1] >= 0.3
