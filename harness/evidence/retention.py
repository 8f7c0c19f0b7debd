"""Selects the bundles of failed tests to remove: bundles beyond an age limit or a size limit."""

from __future__ import annotations

import contextlib
import glob
import itertools
import math
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.artifact_cache import allocated_bytes
from harness.errors import BadInputError
from harness.evidence.archive import SUFFIXES
from harness.foreign_files import read_plain
from harness.foreign_json import parse_json
from harness.limits import JSON, LimitError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: A file that exists only in the evidence of a machine whose test failed.
VERSIONS = "versions.json"
_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The evidence of one failed test: a folder, and an archive beside the folder.

    `made_s` is the modification time of the bundle's files; a person or a copy can set this time.
    `changed_s` is the time at which the bundle's files came into this file system.
    """

    name: str
    parts: tuple[Path, ...]
    made_s: float
    size_bytes: int
    changed_s: float = -math.inf

    def remove(self) -> None:
        """Remove the bundle's folder and archive, even if another process removes them at the same time."""
        for part in self.parts:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def bundles_in(evidence: Path) -> list[Bundle]:
    """Return the bundles of failed tests in a folder of evidence, the latest first.

    Callers may remove the bundles, and other files in the folder may belong to a person. So a
    folder is returned only if it contains a `versions.json` that the harness wrote, and an archive
    is returned only together with the folder beside the archive.
    """
    if not evidence.is_dir():
        return []
    names = {
        found.partition("/")[0]
        # Unlike Path.glob, glob.glob ignores a folder that another run removes meanwhile.
        for found in glob.glob(f"*/*/{VERSIONS}", root_dir=evidence)  # noqa: PTH207
        if _is_of_the_harness(evidence / found)
    }
    found = []
    for name in sorted(names):
        possible = (evidence / f"{name}{suffix}" for suffix in ("", *SUFFIXES))
        paths = [path for path in possible if path.exists()]
        if not paths:
            # Another run removed the bundle meanwhile.
            continue
        # Another worker may be removing the bundle.
        with contextlib.suppress(OSError):
            found.append(
                Bundle(
                    name=name,
                    parts=tuple(paths),
                    made_s=max(path.stat().st_mtime for path in paths),
                    changed_s=max(path.stat().st_ctime for path in paths),
                    size_bytes=sum(map(_size, paths)),
                )
            )
    return sorted(found, key=lambda bundle: -bundle.made_s)


def _is_of_the_harness(versions: Path) -> bool:
    try:
        document = parse_json(read_plain(versions, limit=JSON))
    except (OSError, ValueError, LimitError):
        return False
    return isinstance(document, dict) and {"schema", "harness", "payload", "agent"} <= set(
        document
    )


def _size(path: Path) -> int:
    return allocated_bytes(path) if path.is_dir() else path.stat().st_size


def beyond_limits(
    bundles: Sequence[Bundle],
    *,
    limit_mib: int,
    limit_days: float,
    now_s: float,
    run_started_s: float = math.inf,
) -> list[Bundle]:
    """Return the bundles that are too old or beyond the size limit; `bundles` begins with the latest.

    The size limit never removes the first bundle, nor the first bundle whose time is not in the
    future; these two bundles differ if the clock was wrong for one of them. Bundles that were made
    since this test run started are never removed. Raises BadInputError for a limit that is negative
    or not a number, because such a limit would remove everything or nothing.
    """
    for name, limit in (("mib", limit_mib), ("days", limit_days)):
        if not limit >= 0:
            raise BadInputError(
                f"{limit} was given, but 0 or more was expected.",
                source=f"--bundle-limit-{name}",
            )
    kept = {id(each) for each in bundles if each.changed_s >= run_started_s}
    credible = (each for each in bundles if each.made_s <= now_s)
    latest = {id(each) for each in (*bundles[:1], *itertools.islice(credible, 1))}
    # Bundles that always stay are counted first; the other bundles share the remaining space.
    left = (limit_mib << 20) - sum(
        each.size_bytes for each in bundles if id(each) in kept | latest
    )
    found = []
    for bundle in bundles:
        if id(bundle) in kept:
            continue
        if id(bundle) not in latest:
            left -= bundle.size_bytes
        if now_s - bundle.made_s > limit_days * _DAY_S or (id(bundle) not in latest and left < 0):
            found.append(bundle)
    return found


def made_after(bundles: Sequence[Bundle], now_s: float) -> float:
    """Return the time for a new bundle's files: now, but at least 1 s after each of `bundles`.

    So the new bundle is the latest, even if the clock is behind.
    """
    return max([now_s, *(each.made_s + 1 for each in bundles)])
