"""Unpacks programs from Debian's packages, without installing the packages and without root."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.lease import hold, make_private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.provisioning.command import Runner

#: The file with the keys by which mmdebstrap verifies Debian's archives, and the package that
#: contains this file. Ubuntu does not install the package by default.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
KEYRING_PACKAGE = "debian-archive-keyring"
#: The option that names the file of keys to mmdebstrap. Without the option, mmdebstrap needs `gpg`
#: to find the keys on a host whose apt does not trust these keys, such as Ubuntu.
KEYRING_OPTION = f"--keyring={KEYRING}"
#: The time limit for fetching and for unpacking packages.
UNPACK_S = 560.0
#: The environment variable with the URL of an archive whose signed package lists may have expired.
SNAPSHOT_VARIABLE = "HARNESS_DEBIAN_SNAPSHOT"
_URL = re.compile(r"(https?|file)://\S+")
#: apt's error for a package list that has expired.
_EXPIRED = re.compile(r"^E: (Release file for .* is expired .*)$", re.MULTILINE)


def source_line(
    url: str, suite: str, components: Sequence[str] = ("main",), *, is_snapshot: bool = False
) -> str:
    """Return the line of sources.list for a suite.

    apt refuses an expired package list, because newer lists may have security fixes. For a
    snapshot, the line switches off apt's check of the expiry date.
    """
    options = "[check-valid-until=no] " if is_snapshot else ""
    return f"deb {options}{url} {suite} {' '.join(components)}"


def unpack_packages(
    packages: Sequence[str],
    *,
    release: str,
    work: Path,
    what: str,
    runner: Runner,
    tar_options: Sequence[str] = (),
) -> Path:
    """Unpack packages of a release, and all their dependencies, into `work`/root; return that folder.

    `what` is the program's name in messages. `tar_options` are options with which tar selects or
    leaves out files of the archive.

    Raises RequirementError if mmdebstrap or Debian's keys are missing, HarnessError if the
    archive's package list has expired, and CommandError if mmdebstrap fails for another reason.
    """
    snapshot = _snapshot()
    if shutil.which("mmdebstrap") is None:
        raise RequirementError(
            f"'mmdebstrap', which unpacks {what}, is not installed on this host; install it with "
            "`apt-get install mmdebstrap`."
        )
    if not KEYRING.exists():
        raise RequirementError(
            f"This host lacks '{KEYRING}', the keys that verify the packages of {what}; install "
            f"the keys with `apt-get install {KEYRING_PACKAGE}`."
        )
    archive = work / "root.tar"
    result = runner.run(
        [
            "mmdebstrap",
            KEYRING_OPTION,
            "--variant=extract",
            f"--include={','.join(packages)}",
            release,
            str(archive),
            *([source_line(snapshot, release, is_snapshot=True)] if snapshot else []),
        ],
        timeout_s=UNPACK_S,
    )
    if expired := _EXPIRED.search(result.stderr):
        raise HarnessError(
            f"{what} was not unpacked, because the archive's package list has expired: "
            f"{expired[1]} Try again later, or set {SNAPSHOT_VARIABLE} to the URL of an archive "
            "with the packages of a past day; `harness docs gpus` has examples."
        )
    result.check(f"Unpacking {what}")
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


def _snapshot() -> str:
    """Return the package archive's URL from an environment variable, or an empty text if it is unset."""
    url = os.environ.get(SNAPSHOT_VARIABLE, "").strip()
    if url and not _URL.fullmatch(url):
        raise BadInputError(
            f"The URL of a package archive (http, https or file) was expected, but got {url!r}.",
            source=SNAPSHOT_VARIABLE,
        )
    return url


def ensure_unpacked(
    files: Sequence[str],
    *,
    package: str,
    release: str,
    store: Path,
    runner: Runner,
    report: Callable[[str], None],
) -> Path:
    """Return a folder that contains `files` of a package and of the package's dependencies.

    The paths of `files` are below `/`, and may contain `*`. The package is unpacked if `store` does
    not have the files. The folder's name depends on `files`, `package` and `release`, but not on
    the package's version. So a newer version of the package is unpacked only after somebody has
    removed the folder. `report` is called before long steps.

    Raises RequirementError if mmdebstrap is missing, and CommandError if mmdebstrap fails.
    """
    what = f"Debian's {package}"
    asked = (release, tuple(files), *filter(None, [_snapshot()]))
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:8]
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
