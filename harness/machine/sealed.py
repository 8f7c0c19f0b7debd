"""What is published with a checkpoint: how it is sealed, and looked at without being used."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Literal

import pydantic  # noqa: TC002

from harness import lease
from harness.errors import HarnessError
from harness.published import DamagedError, FileFact, ParentPin, allocated_bytes, now
from harness.published.kind import Kind, appearance, facts_of, write_stamp

if TYPE_CHECKING:
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

SCHEMA = 1
_DIG_S = 120.0

RAM = "ram"
STATE = "state"
DISK = "disk.qcow2"

USED = "used"
"""Locked by those who use a checkpoint; its time of change tells when one last began to."""


class CheckpointDamagedError(DamagedError):
    """A checkpoint in the cache is not what was published; no clone may begin from it."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint is.

    `place` is the folder it was published in: its disk names the file below by an absolute path,
    so that a moved cache is worth nothing.
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


KIND = Kind(noun="checkpoint", shape=Manifest, damaged=CheckpointDamagedError)


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """What the store shows of a checkpoint; `trouble` is why it would be refused.

    `parent` is the name of the parent's folder, `size_mib` what the files take on the disk.
    """

    name: str
    key: str
    folder: Path
    parent: str | None
    size_mib: float
    created: str | None
    last_used: dt.datetime
    is_in_use: bool
    trouble: str | None = None


def seal(
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
    """Describe what a maker left in `content`, which is to be published as `folder`.

    It is noted that everything was read just now. The memory file is not brought to the disk: a
    crash of the host voids the note, and the verification that follows shows what was lost.

    Raises HarnessError where a file is missing.
    """
    missing = [each for each in (RAM, STATE, DISK) if not (content / each).is_file()]
    if missing:
        raise HarnessError(
            f"The maker of the checkpoint '{name}' left no file '{missing[0]}'; it has to "
            "fill all three of the place that it is given."
        )
    # Pages that the guest zeroed need no blocks; where this fails, only space is lost.
    runner.run(["fallocate", "--dig-holes", str(content / RAM)], timeout_s=deadline.cap(_DIG_S))
    (content / USED).touch()
    for path in content.iterdir():
        path.chmod(0o600)
    names = (RAM, STATE, DISK)
    seen = appearance(content, names)
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
    KIND.write(content, manifest)
    write_stamp(content, seen)


def look(folder: Path) -> CheckpointInfo | None:
    """Return what is to be shown of a checkpoint; nothing when it is removed just now."""
    name, _, key = folder.name.rpartition("-")
    parent, created, trouble = None, None, None
    try:
        manifest = KIND.read(folder)
    except CheckpointDamagedError as error:
        trouble = str(error)
    else:
        name, key, created = manifest.name, manifest.key, manifest.created
        parent = None if manifest.parent is None else manifest.parent.folder
    used = folder / USED
    try:
        last_used = (used if used.exists() else folder).stat().st_mtime
        with lease.sole(used) as is_alone:
            return CheckpointInfo(
                name=name,
                key=key,
                folder=folder,
                parent=parent,
                size_mib=allocated_bytes(folder) / (1 << 20),
                created=created,
                last_used=dt.datetime.fromtimestamp(last_used, tz=dt.timezone.utc),
                is_in_use=not is_alone,
                trouble=trouble,
            )
    except FileNotFoundError:
        return None
