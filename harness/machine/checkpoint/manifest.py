"""Writes the manifest of a checkpoint, and makes the checks that only checkpoints need."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pydantic  # noqa: TC002
from typing_extensions import override

from harness.artifact_cache import (
    DISK,
    USED,
    DamagedError,
    FileFact,
    ParentPin,
    allocated_bytes,
    now,
)
from harness.artifact_cache.manifest import ManifestFormat, facts_of, stat_fingerprint, write_stamp
from harness.errors import HarnessError
from harness.image.formats.qcow2 import has_absolute_backing, make_relative

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

SCHEMA = 1
_COPY_S = 120.0

RAM = "ram"
STATE = "state"


class CheckpointDamagedError(DamagedError):
    """A checkpoint in the cache has changed since publication, so no clone may start from it."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The facts of a checkpoint.

    `place` is the folder where the checkpoint was published. If the backing file of the
    checkpoint's disk is outside of the cache, the disk names that file by an absolute path. Such a
    checkpoint works only in `place`.
    """

    schema: Literal[1] = 1
    name: str
    key: str
    parts: Mapping[str, pydantic.JsonValue]
    parent: ParentPin | None
    facts: Mapping[str, str]
    created: str
    place: str
    files: Mapping[str, FileFact]
    allocated_bytes: int


class _CheckpointFormat(ManifestFormat[Manifest]):
    """The format of checkpoints.

    Some checkpoints can't be moved. Each checkpoint has a file that its users lock.
    """

    @override
    def check_structure(self, folder: Path, manifest: Manifest) -> None:
        super().check_structure(folder, manifest)
        if not (folder / USED).is_file():
            raise self.without_lock_file(folder)
        if manifest.place != str(folder.resolve()) and has_absolute_backing(folder / DISK):
            raise CheckpointDamagedError(
                f"The checkpoint in '{folder}' can't be moved from '{manifest.place}', where it was made: "
                "its disk refers to another file by an absolute path."
            )

    def without_lock_file(self, folder: Path) -> CheckpointDamagedError:
        """Return the error for a checkpoint that no user can lock."""
        return CheckpointDamagedError(f"The checkpoint in '{folder}' has no file '{USED}'.")


CHECKPOINT_FORMAT = _CheckpointFormat(
    noun="checkpoint", manifest=Manifest, damaged=CheckpointDamagedError
)


def write_manifest(
    content: Path,
    *,
    folder: Path,
    name: str,
    key: str,
    parts: Mapping[str, object],
    pin: ParentPin | None,
    facts: Mapping[str, str],
    runner: Runner,
    deadline: Deadline,
) -> None:
    """Write the manifest of the files in `content`, which will be published as `folder`.

    A stamp records that every file was just read. The memory file is not synced to the disk: if the
    host crashes, the stamp becomes invalid, and the next verification detects lost data.

    Raises HarnessError if a file is missing.
    """
    names = (RAM, STATE, DISK)
    missing = [each for each in names if not (content / each).is_file()]
    if missing:
        raise HarnessError(
            f"The maker of the checkpoint '{name}' wrote no file '{missing[0]}'; it has to write "
            f"{', '.join(names)}."
        )
    _make_sparse(content / RAM, runner, deadline)
    make_relative(content / DISK, published=folder)
    (content / USED).touch()
    for path in content.iterdir():
        path.chmod(0o600)
    fingerprint = stat_fingerprint(content, names)
    manifest = Manifest(
        name=name,
        key=key,
        parts=json.loads(json.dumps(dict(parts))),
        parent=pin,
        facts=dict(facts),
        created=now(),
        place=str(folder.resolve()),
        files=facts_of(content, names),
        allocated_bytes=allocated_bytes(content),
    )
    CHECKPOINT_FORMAT.write(content, manifest)
    write_stamp(content, fingerprint)


def _make_sparse(ram: Path, runner: Runner, deadline: Deadline) -> None:
    """Free the blocks of zero pages. A failure only wastes disk space.

    `fallocate --dig-holes` does not help: it treats allocated blocks that were never written as
    holes, and leaves these blocks allocated.
    """
    sparse = ram.with_name(f"{ram.name}.sparse")
    copied = runner.run(
        ["cp", "--sparse=always", str(ram), str(sparse)], timeout_s=deadline.cap(_COPY_S)
    )
    if copied.ok:
        sparse.rename(ram)
    else:
        sparse.unlink(missing_ok=True)
