"""A newer QEMU is unpacked once, into a folder with its version, and runs with its own linker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness import debian_packages, lease
from harness.debian_packages import UNPACK_S
from harness.errors import HarnessError, RequirementError
from harness.machine.qemu import debian_sid_qemu
from harness.machine.qemu.debian_sid_qemu import (
    PACKAGES,
    ensure_sid_qemu,
    find_sid_qemu,
    render_program,
)
from harness.provisioning.command import CommandError, CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_VERSION = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\n"


class UnpackingRunner:
    """Plays mmdebstrap, tar and the unpacked QEMU, and refuses any other command.

    `fails` names the program that fails. `binary` is the content of QEMU's file. `limits_s` has the
    time limit of each call.
    """

    def __init__(
        self, *, says: str = _VERSION, fails: str | None = None, binary: bytes = b"ELF"
    ) -> None:
        self.programs: list[str] = []
        self.limits_s: list[float] = []
        self._says = says
        self._fails = fails
        self._binary = binary

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert (stdin, env) == (None, None)
        name = Path(argv[0]).name
        self.programs.append(name)
        self.limits_s.append(timeout_s)
        code, out = int(name == self._fails), ""
        if name == "mmdebstrap":
            assert f"--include={','.join(PACKAGES)}" in argv
            assert argv[-2] == "sid"
            with tarfile.open(argv[-1], "w"):
                pass
        elif name == "tar":
            (root,) = (word for word in argv if word.startswith("--directory="))
            binary = Path(root.partition("=")[2]) / "usr/bin/qemu-system-x86_64"
            binary.parent.mkdir(parents=True)
            binary.write_bytes(self._binary)
            assert list(argv[-4:]) == [
                "--exclude=./dev",
                "--exclude=./usr/share/doc",
                "--exclude=./usr/share/locale",
                "--exclude=./usr/share/man",
            ]
        else:
            assert name == "qemu-system-x86_64"
            assert list(argv[1:]) == ["--version"]
            assert os.access(argv[0], os.X_OK)
            out = self._says
        return CommandResult(argv=tuple(argv), exit_code=code, stdout=out, stderr="no network")


@pytest.fixture(autouse=True)
def _mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "mmdebstrap"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(debian_packages, "KEYRING", tool)
    monkeypatch.setenv("PATH", str(tool.parent))


def _silence(_message: str) -> None:
    """Ignore the message."""


def test_folder_of_an_unpacked_qemu_has_the_package_version_in_its_name(tmp_path: Path) -> None:
    reports: list[str] = []
    runner = UnpackingRunner()

    made = ensure_sid_qemu(tmp_path / "cache", runner, report=reports.append)

    assert made.version == "1:11.1.3+ds-1"
    assert made.program.parent.name.endswith("-1.11.1.3+ds-1")
    assert made.program.stat().st_mode & 0o777 == 0o700
    assert made.program.parent.parent.stat().st_mode & 0o777 == 0o700
    assert (
        f"# QEMU of Debian's package 1:11.1.3+ds-1, sha256 {hashlib.sha256(b'ELF').hexdigest()}.\n"
    ) in made.program.read_text()
    assert reports == [
        "unpacking QEMU of Debian sid, some 500 MiB",
        f"unpacked 1:11.1.3+ds-1 in '{made.program.parent}'",
    ]
    assert runner.programs == ["mmdebstrap", "tar", "qemu-system-x86_64"]
    assert runner.limits_s == [UNPACK_S, UNPACK_S, 20]
    assert not list(made.program.parent.parent.glob(".work-*"))
    assert not (made.program.parent / "root.tar").exists()


def test_unpacked_qemu_is_not_unpacked_again(tmp_path: Path) -> None:
    made = ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)
    runner = UnpackingRunner()

    assert ensure_sid_qemu(tmp_path / "cache", runner, report=_silence) == made
    assert runner.programs == []


def test_qemu_that_was_unpacked_last_is_used(tmp_path: Path) -> None:
    """Debian may return to an earlier version."""
    cache = tmp_path / "cache"
    withdrawn = UnpackingRunner(says=_VERSION.replace("11.1.3", "12.0.0"))
    old = ensure_sid_qemu(cache, withdrawn, report=_silence)
    os.utime(old.program.parent / "version", (1_900_000_000, 1_900_000_000))
    made = ensure_sid_qemu(cache, UnpackingRunner(), refresh=True, report=_silence)
    os.utime(made.program.parent / "version", (1_900_000_100, 1_900_000_100))

    assert find_sid_qemu(cache) == made


def test_qemu_that_was_unpacked_long_ago_or_from_other_packages_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)
    with monkeypatch.context() as patch:
        patch.setattr(debian_sid_qemu, "PACKAGES", (*PACKAGES, "qemu-system-arm"))
        assert find_sid_qemu(tmp_path / "cache") is None
    assert find_sid_qemu(tmp_path / "cache") == made

    os.utime(made.program.parent / "version", (0, 0))

    assert find_sid_qemu(tmp_path / "cache") is None


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    left = [tmp_path / "cache" / "qemu-sid" / f".work-{number}" for number in (1234, 5678)]
    for each in left:
        each.mkdir(parents=True)

    ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)

    assert [each.exists() for each in left] == [False, False]


def test_interrupted_unpacking_leaves_only_the_lock_file(tmp_path: Path) -> None:
    def interrupt(_message: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=interrupt)

    assert [file.name for file in (tmp_path / "cache" / "qemu-sid").iterdir()] == ["lock"]


def test_qemu_that_another_process_unpacks_during_the_wait_for_the_lock_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    @contextlib.contextmanager
    def wait_for_another(lock: Path, *, timeout_s: float, what: str) -> Iterator[None]:
        monkeypatch.setattr(debian_sid_qemu, "hold", lease.hold)
        ensure_sid_qemu(cache, UnpackingRunner(), report=_silence)
        with lease.hold(lock, timeout_s=timeout_s, what=what):
            yield

    monkeypatch.setattr(debian_sid_qemu, "hold", wait_for_another)
    runner = UnpackingRunner()

    ensure_sid_qemu(cache, runner, report=_silence)

    assert runner.programs == []


def test_failed_unpacking_is_reported_and_leaves_only_the_lock_file(tmp_path: Path) -> None:
    for program, what in (
        ("mmdebstrap", "Unpacking QEMU of Debian sid"),
        ("tar", "Unpacking QEMU of Debian sid"),
        ("qemu-system-x86_64", "Asking the unpacked QEMU for its version"),
    ):
        with pytest.raises(CommandError, match=rf"^{what} failed\.\n(.*\n)*stderr: no network$"):
            ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(fails=program), report=_silence)

        assert find_sid_qemu(tmp_path / "cache") is None
        assert [file.name for file in (tmp_path / "cache" / "qemu-sid").iterdir()] == ["lock"]


def test_qemu_whose_version_output_mentions_no_package_is_refused(tmp_path: Path) -> None:
    runner = UnpackingRunner(says="QEMU emulator version 11.1.3 " + 300 * "x")

    with pytest.raises(HarnessError, match=r"'QEMU emulator version 11\.1\.3 x{171}'"):
        ensure_sid_qemu(tmp_path / "cache", runner, report=_silence)


def test_host_without_mmdebstrap_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    with pytest.raises(
        RequirementError, match=r"which unpacks QEMU of Debian sid, .*apt-get install mmdebstrap"
    ):
        ensure_sid_qemu(tmp_path / "cache", UnpackingRunner(), report=_silence)


def test_program_runs_qemu_with_the_unpacked_linker_and_libraries_and_firmware() -> None:
    root = "/cache of mine/qemu/root"

    text = render_program(Path("/cache of mine/qemu"), "1:11.1.3+ds-1", "abc")

    shebang, comment, modules, command = text.splitlines()
    libraries = f"{root}/usr/lib/x86_64-linux-gnu"
    assert shebang == "#!/bin/sh"
    assert comment == "# QEMU of Debian's package 1:11.1.3+ds-1, sha256 abc."
    assert shlex.split(modules) == ["export", f"QEMU_MODULE_DIR={libraries}/qemu"]
    assert shlex.split(command) == [
        "exec",
        f"{libraries}/ld-linux-x86-64.so.2",
        *("--library-path", f"{libraries}:{libraries}/pulseaudio"),
        *("--argv0", "qemu-system-x86_64"),
        f"{root}/usr/bin/qemu-system-x86_64",
        *("-L", f"{root}/usr/share/qemu"),
        *("-L", f"{root}/usr/share/seabios"),
        "$@",
    ]
    # Arguments with blanks stay whole.
    assert command.endswith(' "$@"')


def test_refresh_replaces_an_unpacked_qemu_of_the_same_version(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old = ensure_sid_qemu(cache, UnpackingRunner(), report=_silence)

    made = ensure_sid_qemu(cache, UnpackingRunner(binary=b"new"), refresh=True, report=_silence)

    assert made == old
    assert hashlib.sha256(b"new").hexdigest() in made.program.read_text()
    assert (made.program.parent / "root/usr/bin/qemu-system-x86_64").read_bytes() == b"new"


def test_refresh_that_is_killed_leaves_a_complete_qemu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    ensure_sid_qemu(cache, UnpackingRunner(), report=_silence)

    def begin(folder: Path, **_: object) -> NoReturn:
        (folder / "version").unlink(missing_ok=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", begin)
        with pytest.raises(KeyboardInterrupt):
            ensure_sid_qemu(cache, UnpackingRunner(), refresh=True, report=_silence)

    found = find_sid_qemu(cache)
    assert found is not None
    assert (found.program.parent / "root/usr/bin/qemu-system-x86_64").exists()
    ensure_sid_qemu(cache, UnpackingRunner(), refresh=True, report=_silence)
    assert len(list((cache / "qemu-sid").iterdir())) == 2


def test_timeout_of_the_wait_for_another_process_keeps_the_files_that_it_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_sid_qemu, "UNPACK_S", 0.0)
    store = tmp_path / "cache" / "qemu-sid"
    (store / ".work-1").mkdir(parents=True)
    runner = UnpackingRunner()

    with (
        lease.hold(store / "lock", timeout_s=0, what="this test"),
        pytest.raises(HarnessError, match=r"^Waited 0 s for QEMU of Debian sid, which another"),
    ):
        ensure_sid_qemu(tmp_path / "cache", runner, report=_silence)

    assert runner.programs == []
    assert (store / ".work-1").is_dir()
