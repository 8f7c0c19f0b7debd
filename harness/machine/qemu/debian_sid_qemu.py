"""Unpacks a newer QEMU from Debian sid: nothing is installed on the host, and root is not needed.

The packages are unpacked into a folder of the cache. A small program in that folder runs the
unpacked QEMU with the unpacked dynamic linker, libraries, firmware and modules. No file of the host
changes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
import secrets
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.debian_packages import UNPACK_S, unpack_packages
from harness.errors import HarnessError
from harness.lease import hold, make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.provisioning.command import Runner

#: The packages to unpack. All modules are included: QEMU looks for a missing module in the host's
#: folder, and aborts if that module is of another build.
PACKAGES = (
    "qemu-system-x86",
    "qemu-system-gui",
    "qemu-system-modules-opengl",
    "qemu-system-modules-spice",
)
_LEFT_OUT = ("./dev", "./usr/share/doc", "./usr/share/locale", "./usr/share/man")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAM = "usr/bin/qemu-system-x86_64"
_NAME = "qemu-system-x86_64"
#: The version becomes the name of a folder. Debian's policy, section 5.6.12, defines its characters.
_VERSION = re.compile(r"\(Debian ([0-9][A-Za-z0-9.+:~-]*)\)")
_MAX_AGE = dt.timedelta(days=30)
_QUERY_S = 20.0


@dataclass(frozen=True, kw_only=True)
class SidQemu:
    """An unpacked QEMU, whose program can be passed to `--qemu`."""

    program: Path
    version: str


def find_sid_qemu(cache: Path) -> SidQemu | None:
    """Return the newest QEMU in the cache, or None if all were unpacked too long ago."""
    oldest = dt.datetime.now(tz=dt.timezone.utc) - _MAX_AGE
    found = [
        SidQemu(program=folder / _NAME, version=(folder / "version").read_text().strip())
        for folder in sorted(_store_folder(cache).glob(f"{_recipe_key()}-*"), key=_made_at)
        if _made_at(folder) > oldest.timestamp()
    ]
    return found[-1] if found else None


def ensure_sid_qemu(
    cache: Path, runner: Runner, *, refresh: bool = False, report: Callable[[str], None]
) -> SidQemu:
    """Return a QEMU of Debian sid. Unpack QEMU if the cache has none, or if `refresh` is true.

    The folder's name depends on the list of packages and on the version of Debian's package. So
    each version has its own folder, and checkpoints distinguish the versions.

    Raises RequirementError if mmdebstrap is missing, and HarnessError if mmdebstrap fails.
    """
    store = make_private_folder(_store_folder(cache))
    with hold(store / "lock", timeout_s=UNPACK_S, what="QEMU of Debian sid"):
        found = None if refresh else find_sid_qemu(cache)
        if found is not None:
            return found
        for left in store.glob(".work-*"):
            shutil.rmtree(left)
        work = make_private_folder(store / f".work-{secrets.token_hex(4)}")
        try:
            report("unpacking QEMU of Debian sid, some 500 MiB")
            unpack_packages(
                PACKAGES,
                release="sid",
                work=work,
                what="QEMU of Debian sid",
                runner=runner,
                tar_options=[f"--exclude={path}" for path in _LEFT_OUT],
            )
            version = _package_version(work, runner)
            folder = store / f"{_recipe_key()}-{version.replace(':', '.')}"
            (work / "version").write_text(f"{version}\n")
            program = work / _NAME
            program.write_text(render_program(folder, version, _digest(work / "root" / _PROGRAM)))
            program.chmod(0o700)
            # The old folder is renamed before its removal: a process that is killed during the
            # removal would leave an incomplete folder.
            old = store / f".work-{secrets.token_hex(4)}"
            with contextlib.suppress(FileNotFoundError):
                folder.rename(old)
            work.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        report(f"unpacked {version} in '{folder}'")
        return SidQemu(program=folder / _NAME, version=version)


def render_program(folder: Path, version: str, digest: str) -> str:
    """Return the program that runs the unpacked QEMU. The function is pure.

    The program's text contains the version and digest of the unpacked QEMU. The harness
    distinguishes QEMUs by the content of the program that `--qemu` names, since only the same QEMU
    can load a saved guest's state.
    """
    root = folder / "root"
    libraries = root / _LIBRARIES
    argv = [
        str(libraries / "ld-linux-x86-64.so.2"),
        *("--library-path", f"{libraries}:{libraries / 'pulseaudio'}"),
        *("--argv0", _NAME),
        str(root / _PROGRAM),
        *("-L", str(root / "usr/share/qemu")),
        *("-L", str(root / "usr/share/seabios")),
    ]
    return (
        "#!/bin/sh\n"
        f"# QEMU of Debian's package {version}, sha256 {digest}.\n"
        f"export QEMU_MODULE_DIR={shlex.quote(str(libraries / 'qemu'))}\n"
        f'exec {shlex.join(argv)} "$@"\n'
    )


def _package_version(work: Path, runner: Runner) -> str:
    """Return the version of the package, as the unpacked QEMU prints it."""
    program = work / _NAME
    program.write_text(render_program(work, "of a version to be asked for", ""))
    program.chmod(0o700)
    answer = runner.run([str(program), "--version"], timeout_s=_QUERY_S)
    answer.check("Asking the unpacked QEMU for its version")
    found = _VERSION.search(answer.stdout)
    if found is None:
        raise HarnessError(
            "The unpacked QEMU was expected to name its Debian package, but it printed "
            f"{answer.stdout[:200]!r}."
        )
    return found.group(1)


def _recipe_key() -> str:
    return hashlib.sha256(repr((PACKAGES, _LEFT_OUT)).encode()).hexdigest()[:8]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _store_folder(cache: Path) -> Path:
    return cache / "qemu-sid"


def _made_at(folder: Path) -> float:
    return (folder / "version").stat().st_mtime
