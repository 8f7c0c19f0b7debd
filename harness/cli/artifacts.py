"""Prints the cached folders that a command lists or removes, as text or as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.artifact_cache.cache import CachedArtifact
    from harness.artifact_cache.removal import Removal


def print_artifacts_json(artifacts: Iterable[CachedArtifact]) -> None:
    """Print a JSON list with an object for each cached folder."""
    facts = [
        {
            "name": artifact.name,
            "key": artifact.key,
            "folder": str(artifact.folder),
            "parent": artifact.parent,
            "size_mib": round(artifact.size_mib, 1),
            "created": artifact.created,
            "last_used": artifact.last_used.isoformat(timespec="seconds"),
            "in_use": artifact.is_in_use,
            "damage": artifact.damage,
        }
        for artifact in artifacts
    ]
    print(json.dumps(facts, indent=2))


def print_verification(
    artifacts: Sequence[CachedArtifact], *, key_digits: int, as_json: bool
) -> int:
    """Print the results of verifying folders; return 2 if a folder is damaged, else 0."""
    if as_json:
        print_artifacts_json(artifacts)
    else:
        for artifact in artifacts:
            if artifact.damage is None:
                print(f"{artifact.name} {short_key(artifact, key_digits)}: ok")
        print_damage(artifacts)
    return 2 if any(artifact.damage for artifact in artifacts) else 0


def print_damage(artifacts: Iterable[CachedArtifact]) -> None:
    """Print to stderr what is wrong with each damaged folder."""
    for artifact in artifacts:
        if artifact.damage is not None:
            print(f"harness: {artifact.damage}", file=sys.stderr)


def short_key(artifact: CachedArtifact, digits: int) -> str:
    """Return the first digits of an artifact's key, without a prefix such as `sha256:`."""
    return artifact.key.rpartition(":")[2][:digits]


def print_removals(removals: Iterable[Removal], *, as_json: bool) -> None:
    """Print each removal as a line, or all removals as a JSON list of objects with path, size and reason."""
    if as_json:
        facts = [
            {
                "path": str(removal.path),
                "size_mib": round(removal.size_mib, 1),
                "reason": removal.reason,
            }
            for removal in removals
        ]
        print(json.dumps(facts, indent=2))
        return
    for removal in removals:
        print(f"Removed '{removal.path}' ({removal.size_mib:.0f} MiB): {removal.reason}")
