"""Unpacks programs from Debian's packages, without installing them and without root."""

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

#: The keys by which mmdebstrap verifies Debian's archives, and the package that has them: Ubuntu lacks it.
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
KEYRING_PACKAGE = "debian-archive-keyring"
#: If apt does not trust these keys, as on Ubuntu, mmdebstrap finds them without this option only by `gpg`.
KEYRING_OPTION = f"--keyring={KEYRING}"
#: The longest that fetching and unpacking may take.
UNPACK_S = 560.0
#: Has the URL of an archive whose signed lists of packages may be past their date.
SNAPSHOT_VARIABLE = "HARNESS_DEBIAN_SNAPSHOT"
_URL = re.compile(r"(https?|file)://\S+")
#: apt's error for a list of packages that is past its date.
_EXPIRED = re.compile(r"^E: (Release file for .* is expired .*)$", re.MULTILINE)


def source_line(
    url: str, suite: str, components: Sequence[str] = ("main",), *, is_snapshot: bool = False
) -> str:
    """Return the line of sources.list for a suite.

    apt refuses a list of packages past its date, since it may hide later security fixes; for a snapshot,
    this check is switched off.
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

    `what` names the program in messages; `tar_options` leave out or select files of the archive.

    Raises RequirementError if mmdebstrap or Debian's keys are missing, HarnessError if the
    archive's list of packages is past its date, CommandError if mmdebstrap fails otherwise.
    """
    snapshot = _snapshot()
    if shutil.which("mmdebstrap") is None:
        raise RequirementError(
            f"There is no 'mmdebstrap' on this host, which unpacks {what}; install it with "
            "`apt-get install mmdebstrap`."
        )
    if not KEYRING.exists():
        raise RequirementError(
            f"There is no '{KEYRING}' on this host, by which the packages of {what} are verified; install "
            f"it with `apt-get install {KEYRING_PACKAGE}`."
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
            f"{what} was not unpacked, because the archive's list of packages is past its date: "
            f"{expired[1]} Try again later, or, to take packages of a past day, set "
            f"{SNAPSHOT_VARIABLE} to the URL of an archive of them; `harness docs gpus` has examples."
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
    """Return the URL of the archive that the environment names, or nothing."""
    url = os.environ.get(SNAPSHOT_VARIABLE, "").strip()
    if url and not _URL.fullmatch(url):
        raise BadInputError(
            f"The URL of a package archive was expected, by http, https or file, but is {url!r}.",
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
    """Return a folder with `files` of a package and of its dependencies.

    The paths of `files` are below `/`, and may have `*`. The package is unpacked if `store` does not
    have the files. The folder is named by the request and not by the package's version, so it is used
    until it is removed. `report` is called before long steps.

    Raises RequirementError if mmdebstrap is missing, CommandError if it fails.
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
