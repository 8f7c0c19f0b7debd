"""Pulls the folders that a cache lacks from the shared store, and pushes those that it has."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.artifact_cache import KEY_DIGITS, MANIFEST, USED
from harness.errors import HarnessError
from harness.lease import make_private_folder
from harness.progress import Stage
from harness.shared_store import StoreError
from harness.shared_store.client import MANIFEST_TYPE, RegistryClient
from harness.shared_store.packing import (
    FILE_TYPE,
    REST_TYPE,
    TITLE,
    pack,
    read_files,
    unpack_file,
    unpack_rest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.progress import Progress

ARTIFACT_TYPE = "application/vnd.gpu-node-harness.folder.v1"
CONFIG_TYPE = "application/vnd.gpu-node-harness.manifest.v1+json"
CREATED = "org.opencontainers.image.created"
BYTES = "gpu-node-harness.bytes"
NEEDS = "gpu-node-harness.needs"
"""What a checkpoint needs of its host, as a sentence."""

_PART_AGE_S = 7 * 86400.0
_REPORT_S = 10.0
_COMPARED = 5
#: What people call the inputs of a checkpoint's key that depend on the host.
_INPUTS = {
    "qemu": "another QEMU or processor",
    "argv": "another machine (accelerator, CPU, memory or devices)",
    "agent": "another version of the guest agent",
    "image": "another image",
    "image_disk_sha256": "an image that was built again",
    "kernel": "another kernel",
    "parent": "another checkpoint below it",
}


@dataclass(frozen=True, kw_only=True)
class StoredArtifact:
    """An artifact of the shared store, as its manifest describes it."""

    repository: str
    tag: str
    digest: str
    pushed: dt.datetime | None
    packed_bytes: int
    needs: str | None


@dataclass(kw_only=True)
class SharedCache:
    """The repository of one cache in the shared store.

    `partial` is the folder of blobs whose pull was interrupted. Without `is_writable` nothing is
    pushed by `offer`.
    """

    client: RegistryClient
    repository: str
    partial: Path
    is_writable: bool = False

    def fetch(
        self, name: str, into: Path, *, inputs: Mapping[str, object], progress: Progress
    ) -> bool:
        """Write the folder `name` to `into`; return whether the store gave it.

        What was wrong is reported, and the caller then makes the folder itself. `inputs` are what its key
        was made of, to say why the store has another one only.
        """
        try:
            if self.pull(name, into, progress=progress):
                return True
            progress.report(
                Stage.CHECK,
                f"the store '{self.client.address}' has no '{name}'"
                f"{self._why_not(name, inputs)}; it is made here",
            )
        except StoreError as error:
            progress.report(Stage.REFUSED, f"{error} It is made here.")
        for path in into.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return False

    def pull(self, name: str, into: Path, *, progress: Progress) -> bool:
        """Write the folder `name` to `into`; return False where the store has none.

        Raises StoreError, and nothing of the folder may then be used.
        """
        found = self.client.manifest(self.repository, name)
        if found is None:
            return False
        manifest, _ = found
        what = f"the artifact '{name}'"
        try:
            layers = [_Layer.of(layer) for layer in manifest["layers"]]
            config = str(manifest["config"]["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"The store '{self.client.address}' has a malformed manifest of '{name}': {error!r}."
            ) from error
        own = self.client.small_blob(self.repository, config, f"the description of '{name}'")
        files = read_files(own, name)
        missing = sorted(set(files) - {layer.title for layer in layers})
        if missing:
            raise StoreError(f"The store's '{name}' lacks the file '{missing[0]}'.")
        packed = sum(layer.size for layer in layers)
        progress.report(Stage.FETCH, f"pulling {packed >> 20} MiB from '{self.client.address}'")
        parts = make_private_folder(self.partial)
        _remove_old(parts)
        meter = _Meter(packed, progress)
        done: list[Path] = []
        try:
            for layer in layers:
                part = parts / f"{name}.{layer.digest.rpartition(':')[2][:KEY_DIGITS]}"
                meter.skip(part.stat().st_size if part.exists() else 0)
                self.client.fetch_blob(
                    self.repository,
                    layer.digest,
                    layer.size,
                    part,
                    what=f"the file '{layer.title}' of '{name}'",
                    progress=meter.add,
                )
                done.append(part)
                if layer.media_type == REST_TYPE:
                    unpack_rest(part, into, name)
                elif layer.media_type == FILE_TYPE and layer.title in files:
                    unpack_file(part, into / layer.title, files[layer.title], name)
            (into / MANIFEST).write_bytes(own)
            (into / USED).touch()
        except OSError as error:
            for part in parts.glob(f"{name}.*"):
                part.unlink(missing_ok=True)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StoreError(
                    f"The disk of '{into}' became full while {what} was pulled; nothing of it is kept: "
                    "free some space, or set XDG_CACHE_HOME to a folder on a larger disk."
                ) from error
            raise StoreError(f"{what.capitalize()} could not be written: {error}.") from error
        for part in done:
            part.unlink()
        return True

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Push a folder that was just made, where this run may; trouble is only reported."""
        if not self.is_writable:
            return
        try:
            self.push(folder, progress=progress)
        except (HarnessError, OSError) as error:
            progress.report(Stage.REFUSED, f"{error} It stays in this host's cache alone.")

    def push(self, folder: Path, *, progress: Progress) -> bool:
        """Push a published folder; return False where the store has it already.

        Raises StoreError that names a damaged file.
        """
        if self.client.manifest(self.repository, folder.name) is not None:
            return False
        own = (folder / MANIFEST).read_bytes()
        progress.report(Stage.PUBLISH, f"pushing it to '{self.client.address}'")
        layers: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(dir=make_private_folder(self.partial)) as scratch:
            work = Path(scratch)
            for packed in pack(folder, work):
                what = f"the file '{packed.title}' of '{folder.name}'"
                self.client.push_blob(self.repository, packed.path, packed.digest, what)
                layers.append(packed.descriptor())
            config = work / MANIFEST
            config.write_bytes(own)
            digest = f"sha256:{hashlib.sha256(own).hexdigest()}"
            self.client.push_blob(
                self.repository, config, digest, f"the description of '{folder.name}'"
            )
        stored = sum(layer["size"] for layer in layers)
        needs = _needs(own)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": digest, "size": len(own)},
            "layers": layers,
            "annotations": {
                CREATED: dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds"),
                BYTES: str(stored),
                **({} if needs is None else {NEEDS: needs}),
            },
        }
        self.client.push_manifest(self.repository, folder.name, json.dumps(manifest).encode())
        return True

    def ls(self) -> list[StoredArtifact]:
        """Return what the store has of this cache, by name; artifacts of other programs are left out."""
        found = []
        for tag in self.client.tags(self.repository):
            known = self.client.manifest(self.repository, tag)
            if known is not None and known[0].get("artifactType") == ARTIFACT_TYPE:
                found.append(_described(self.repository, tag, *known))
        return found

    def remove(self, artifact: StoredArtifact) -> None:
        """Remove an artifact from the store."""
        self.client.delete(self.repository, artifact.digest, f"'{artifact.tag}'")

    def _why_not(self, name: str, inputs: Mapping[str, object]) -> str:
        """Return what is different in the artifacts of the same name that the store has."""
        if not inputs:
            return ""
        stem = name.rpartition("-")[0]
        tags = [
            tag
            for tag in self.client.tags(self.repository)
            if tag.rpartition("-")[0] == stem and tag != name
        ]
        for tag in tags[-_COMPARED:]:
            manifest, _ = self.client.manifest(self.repository, tag) or ({}, "")
            if manifest.get("artifactType") != ARTIFACT_TYPE:
                continue
            config = str(manifest.get("config", {}).get("digest"))
            own = self.client.small_blob(self.repository, config, f"the description of '{tag}'")
            parts = _parts(own, tag)
            wanted = json.loads(json.dumps(inputs))
            different = [
                key
                for key in sorted({*parts, *wanted})
                if parts.get(key) != wanted.get(key) and key != "parent"
            ]
            if different:
                needs = (manifest.get("annotations") or {}).get(NEEDS)
                words = ", ".join(_INPUTS.get(key, f"another '{key}'") for key in different)
                detail = f" ({needs})" if needs else ""
                return f", only '{tag}', which was made with {words}{detail}"
        return ""


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A blob of an artifact."""

    title: str
    digest: str
    size: int
    media_type: str

    @classmethod
    def of(cls, layer: Mapping[str, Any]) -> _Layer:
        return cls(
            title=str(layer["annotations"][TITLE]),
            digest=str(layer["digest"]),
            size=int(layer["size"]),
            media_type=str(layer["mediaType"]),
        )


class _Meter:
    """Reports how much of a pull has come, at intervals."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = max(1, total)
        self._progress = progress
        self._have = 0
        self._fetched = 0
        self._since = self._reported = time.monotonic()

    def skip(self, count: int) -> None:
        self._have += count

    def add(self, count: int) -> None:
        self._have += count
        self._fetched += count
        now = time.monotonic()
        if now - self._reported >= _REPORT_S:
            self._reported = now
            speed = self._fetched / (1 << 20) / (now - self._since)
            self._progress.report(
                Stage.FETCH, f"{100 * self._have // self._total} %, {speed:.1f} MiB/s"
            )


def needed_artifacts(found: Sequence[StoredArtifact], names: Sequence[str]) -> list[str]:
    """Return the tags that `names` select: a whole tag or its beginning; all without names."""
    return [
        each.tag for each in found if not names or any(each.tag.startswith(name) for name in names)
    ]


def _described(
    repository: str, tag: str, manifest: Mapping[str, Any], digest: str
) -> StoredArtifact:
    try:
        notes = dict(manifest.get("annotations") or {})
        return StoredArtifact(
            repository=repository,
            tag=tag,
            digest=digest,
            pushed=_moment(notes.get(CREATED)),
            packed_bytes=sum(_Layer.of(layer).size for layer in manifest["layers"]),
            needs=notes.get(NEEDS),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"The manifest of '{tag}' in the store is malformed: {error!r}."
        ) from error


def _moment(text: object) -> dt.datetime | None:
    """Return a time with its zone; None for another form."""
    try:
        found = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)


def _parts(own: bytes, tag: str) -> dict[str, object]:
    """Return what the key of an artifact was made of, by its description; raises StoreError."""
    try:
        return dict(json.loads(own).get("parts", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(
            f"The description of '{tag}' in the store is malformed: {error!r}."
        ) from error


def _needs(own: bytes) -> str | None:
    """Return what a checkpoint's maker wrote down about QEMU and the processor."""
    facts = json.loads(own).get("facts") or {}
    words = [str(facts[key]) for key in ("qemu", "processor") if key in facts]
    return ", ".join(words) or None


def _remove_old(parts: Path) -> None:
    """Remove what interrupted pulls left a week ago."""
    limit = time.time() - _PART_AGE_S
    for path in parts.iterdir():
        # Another pull may be removing its own.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime >= limit:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def shared_caches(
    client: RegistryClient, cache: Path, *, is_writable: bool = False
) -> dict[str, SharedCache]:
    """Return the shared caches by the name of their repository."""
    return {
        repository: SharedCache(
            client=client,
            repository=repository,
            partial=cache / "partial-pulls",
            is_writable=is_writable,
        )
        for repository in REPOSITORIES
    }


REPOSITORIES = ("images", "derived", "checkpoints")
"""A repository for each cache of folders; cloud images come from their publishers."""
