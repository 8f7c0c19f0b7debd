"""Unpacks programs out of Debian's packages: nothing is installed, nobody is root."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.lease import hold, make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.provisioning.command import Runner

#: The longest that fetching and unpacking may take.
UNPACK_S = 560.0


def unpack_packages(
    packages: Sequence[str],
    *,
    release: str,
    work: Path,
    what: str,
    runner: Runner,
    tar_options: Sequence[str] = (),
) -> Path:
    """Unpack packages of a release, and all that they depend on, into `work`/root; return that.

    `what` names the program in messages; `tar_options` leave out or select files of the archive.

    Raises RequirementError where mmdebstrap is missing, CommandError where it fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise RequirementError(
            f"There is no 'mmdebstrap' on this host, which unpacks {what}; install it with "
            "`apt-get install mmdebstrap`."
        )
    archive = work / "root.tar"
    runner.run(
        [
            "mmdebstrap",
            "--variant=extract",
            f"--include={','.join(packages)}",
            # A release's own list of packages may be past its date where a mirror lags.
            *("--aptopt", 'Acquire::Check-Valid-Until "false"'),
            release,
            str(archive),
        ],
        timeout_s=UNPACK_S,
    ).check(f"Unpacking {what}")
    root = make_private_folder(work / "root")
    runner.run(
        [
            "tar",
            "--extract",
            "--no-same-owner",
            f"--directory={root}",
            f"--file={archive}",
            *tar_options,
        ],
        timeout_s=UNPACK_S,
    ).check(f"Unpacking {what}")
    archive.unlink()
    return root


def ensure_unpacked(
    files: Sequence[str],
    *,
    package: str,
    release: str,
    store: Path,
    runner: Runner,
    report: Callable[[str], None],
) -> Path:
    """Return a folder with `files` of a package and of what it depends on.

    Their paths are below `/`, and may have `*`. They are unpacked where `store` has none. The folder's name says what was asked for and not the
    package's version: it stays until it is removed. `report` is told what takes long.

    Raises RequirementError where mmdebstrap is missing, CommandError where it fails.
    """
    what = f"Debian's {package}"
    key = hashlib.sha256(repr((release, tuple(files))).encode()).hexdigest()[:8]
    root = make_private_folder(store) / key
    with hold(store / "lock", timeout_s=UNPACK_S, what=what):
        if not root.exists():
            report(f"unpacking {what}")
            for left in store.glob(".work-*"):
                shutil.rmtree(left)
            work = make_private_folder(store / f".work-{secrets.token_hex(4)}")
            try:
                unpack_packages(
                    [package],
                    release=release,
                    work=work,
                    what=what,
                    runner=runner,
                    tar_options=["--wildcards", *(f"./{path}" for path in files)],
                ).rename(root)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return root
