"""A newer QEMU is unpacked once, named by what is in it, and run by its own linker."""

from __future__ import annotations

import os
import shlex
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.machine.qemu.debian_sid_qemu import (
    PACKAGES,
    ensure_sid_qemu,
    find_sid_qemu,
    render_program,
)
from harness.provisioning.command import CommandError, CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VERSION = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\n"


class UnpackingRunner:
    """Plays mmdebstrap, tar and the unpacked QEMU; refuses anything else."""

    def __init__(self, *, says: str = _VERSION, mmdebstrap_code: int = 0) -> None:
        self.programs: list[str] = []
        self._says = says
        self._mmdebstrap_code = mmdebstrap_code

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s > 0
        assert (stdin, env) == (None, None)
        name = Path(argv[0]).name
        self.programs.append(name)
        code, out = 0, ""
        if name == "mmdebstrap":
            assert f"--include={','.join(PACKAGES)}" in argv
            code = self._mmdebstrap_code
            with tarfile.open(argv[-1], "w"):
                pass
        elif name == "tar":
            (root,) = (word for word in argv if word.startswith("--directory="))
            binary = Path(root.partition("=")[2]) / "usr/bin/qemu-system-x86_64"
            binary.parent.mkdir(parents=True)
            binary.write_bytes(b"ELF")
        else:
            assert name == "qemu-system-x86_64"
            assert list(argv[1:]) == ["--version"]
            out = self._says
        return CommandResult(argv=tuple(argv), exit_code=code, stdout=out, stderr="no network")


@pytest.fixture(autouse=True)
def _mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))


def _silence(_message: str) -> None:
    """Listen to nothing."""


def test_unpacked_qemu_is_named_by_its_packages_version(tmp_path: Path) -> None:
    reports: list[str] = []

    made = ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=reports.append)

    assert made.version == "1:11.1.3+ds-1"
    assert made.program.parent.name.endswith("-1.11.1.3+ds-1")
    assert os.access(made.program, os.X_OK)
    assert "1:11.1.3+ds-1" in reports[-1]
    assert not list(made.program.parent.parent.glob(".work-*"))
    assert not (made.program.parent / "root.tar").exists()


def test_second_asking_unpacks_nothing(tmp_path: Path) -> None:
    made = ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)
    runner = UnpackingRunner()

    assert ensure_sid_qemu(tmp_path / "cache", runner, report=_silence) == made
    assert runner.programs == []


def test_refresh_unpacks_anew_and_newest_is_taken(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = ensure_sid_qemu(cache, UnpackingRunner(), report=_silence)
    os.utime(old.program.parent / "version", (1_900_000_000, 1_900_000_000))
    newer = UnpackingRunner(says=_VERSION.replace("11.1.3", "12.0.0"))

    made = ensure_sid_qemu(cache, newer, refresh=True, report=_silence)
    os.utime(made.program.parent / "version", (1_900_000_100, 1_900_000_100))

    assert made.version == "1:12.0.0+ds-1"
    assert find_sid_qemu(cache) == made


def test_old_one_is_not_taken(tmp_path: Path) -> None:
    made = ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)
    os.utime(made.program.parent / "version", (0, 0))

    assert find_sid_qemu(tmp_path / "cache") is None


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "cache" / "qemu-sid" / ".work-1234"
    left.mkdir(parents=True)

    ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)

    assert not left.exists()


def test_failed_unpacking_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no network"):
        ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(mmdebstrap_code=1), report=_silence)

    assert find_sid_qemu(tmp_path / "cache") is None
    assert [file.name for file in (tmp_path / "cache" / "qemu-sid").iterdir()] == ["lock"]


def test_qemu_that_names_no_package_is_refused(tmp_path: Path) -> None:
    runner = UnpackingRunner(says="QEMU emulator version 11.1.3\n")

    with pytest.raises(HarnessError, match="expected to name its Debian package"):
        ensure_sid_qemu(tmp_path / "cache", runner, report=_silence)


def test_host_without_mmdebstrap_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(RequirementError, match="apt-get install mmdebstrap"):
        ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)


def test_program_runs_qemu_with_its_own_linker_libraries_and_firmware() -> None:
    folder = Path("/cache of mine/qemu")

    text = render_program(folder, "1:11.1.3+ds-1", "abc")

    shebang, comment, modules, command = text.splitlines()
    assert shebang == "#!/bin/sh"
    assert "1:11.1.3+ds-1" in comment
    assert "abc" in comment
    assert shlex.split(modules)[1] == (
        "QEMU_MODULE_DIR=/cache of mine/qemu/root/usr/lib/x86_64-linux-gnu/qemu"
    )
    words = shlex.split(command)
    assert words[0] == "exec"
    assert words[1].endswith("/root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    assert words[-1] == "$@"
    assert f"{folder}/root/usr/share/seabios" in words
