"""What a failed test left as one file, to be sent to another host; and such a file as a folder again."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.lease import leased_folder
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The suffixes of archives by the program that packs them, the preferred one first. Memory and disk of a
#: saved machine are packed already, so the fastest way is the best.
_PACKERS = {"zstd": (".tar.zst", "zstd -q -1 -T0"), "gzip": (".tar.gz", "gzip -1")}
SUFFIXES = tuple(suffix for suffix, _ in _PACKERS.values())
_PACK_S = 600.0


def archive_of(folder: Path) -> Path | None:
    """Return the archive beside the folder of a test's evidence, or None."""
    found = (folder.with_name(folder.name + suffix) for suffix in SUFFIXES)
    return next((path for path in found if path.is_file()), None)


def write_archive(folder: Path) -> Path:
    """Pack a test's evidence into an archive beside it, which only the owner can read.

    Raises HarnessError where it can't be written.
    """
    program = next((each for each in _PACKERS if shutil.which(each)), "gzip")
    suffix, packer = _PACKERS[program]
    archive = folder.with_name(folder.name + suffix)
    part = archive.with_name(f".{archive.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        result = LocalRunner().run(
            [
                *(
                    "tar",
                    "--create",
                    "--sparse",
                    # A ':' in a name would be that of a remote host.
                    "--force-local",
                    f"--file={part}",
                    f"--use-compress-program={packer}",
                ),
                # A holder's log and sockets may change meanwhile.
                *("--warning=no-file-changed", "--warning=no-file-ignored"),
                *(f"--directory={folder.parent}", "--", folder.name),
            ],
            timeout_s=_PACK_S,
        )
        # 1 means that a file changed while it was read.
        if result.exit_code not in {0, 1}:
            raise HarnessError(f"The archive of '{folder}' can't be made.\n{result.render()}")
        for each in SUFFIXES:
            folder.with_name(folder.name + each).unlink(missing_ok=True)
        part.rename(archive)
    except OSError as error:
        raise HarnessError(f"The archive of '{folder}' can't be made: {error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return archive


@contextlib.contextmanager
def opened(bundle: Path, runs: Path, *, has_machine: bool = False) -> Iterator[Path]:
    """Give the folder of a test's evidence, which is `bundle` itself unless that is an archive.

    An archive is unpacked into a folder below `runs` that is removed at the end; saved machines in it
    only where `has_machine`. Raises BadInputError for what is neither.
    """
    if bundle.is_dir():
        yield bundle
        return
    if not bundle.is_file() or not bundle.name.endswith(SUFFIXES):
        raise BadInputError(
            f"This is neither a folder of evidence nor an archive of one ({', '.join(SUFFIXES)}).",
            source=str(bundle),
        )
    packer = next(
        packer for suffix, packer in _PACKERS.values() if bundle.name.endswith(suffix)
    ).split()[0]
    if shutil.which(packer) is None:
        raise HarnessError(
            f"'{bundle}' is packed by '{packer}', which this host lacks; install it with "
            f"`apt-get install {packer}`."
        )
    with leased_folder(runs, prefix="bundle") as folder:
        result = LocalRunner().run(
            [
                *("tar", "--extract", "--force-local", f"--file={bundle}"),
                *(f"--use-compress-program={packer}", f"--directory={folder}"),
                *("--no-same-owner", "--no-same-permissions"),
                *(
                    ()
                    if has_machine
                    else ("--exclude=*/checkpoint/memory.*", "--exclude=*/disk.qcow2")
                ),
            ],
            timeout_s=_PACK_S,
        )
        if not result.ok:
            raise BadInputError(
                f"It can't be unpacked into '{runs}': it is damaged, or no archive, or the disk is "
                f"full.\n{result.render()}",
                source=str(bundle),
            )
        _refuse_others(folder, bundle)
        yield folder


def _refuse_others(folder: Path, bundle: Path) -> None:
    """Refuse an archive with links and devices: what reads it would follow them on this host."""
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise BadInputError(
                    f"The archive has '{path.relative_to(folder)}', which is neither a file nor a "
                    "folder; the harness writes no such archives, so do not trust it.",
                    source=str(bundle),
                )
            if stat.S_ISDIR(mode):
                # One that its owner can't read could not be removed either.
                path.chmod(0o700)


def several_machines(found: Sequence[Path], folder: Path, bundle: Path) -> BadInputError:
    """Return the error for a `bundle`, opened as `folder`, that has several machines."""
    names = ", ".join(f"'{path.relative_to(folder)}'" for path in found)
    how = "name the folder of one" if bundle.is_dir() else "unpack it, and name the folder of one"
    return BadInputError(f"There are several machines, {names}; {how}.", source=str(bundle))
