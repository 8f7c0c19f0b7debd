"""Pulls the folders that a cache lacks from the shared store, and pushes folders of the cache."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.artifact_cache import DISK, KEY_DIGITS, MANIFEST, USED
from harness.artifact_cache.disk_space import FULL
from harness.errors import HarnessError
from harness.image.formats.qcow2 import why_unsafe_in_a_cache
from harness.lease import leased_folder, make_private_folder, sweep
from harness.limits import STORE_SECONDS
from harness.progress import Stage
from harness.shared_store import StoreError
from harness.shared_store.answers import (
    CREATED,
    FILE_TYPE,
    NEEDS,
    check_layers,
    read_artifact,
    read_files,
    read_moment,
    read_notes,
    read_parts,
)
from harness.shared_store.client import MANIFEST_TYPE, RegistryClient
from harness.shared_store.packing import DataBudget, pack, unpack_file, unpack_rest
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.progress import Progress
    from harness.provisioning.wait import Deadline

ARTIFACT_TYPE = "application/vnd.gpu-node-harness.folder.v1"
CONFIG_TYPE = "application/vnd.gpu-node-harness.manifest.v1+json"

_PART_AGE_S = 7 * 86400.0
_REPORT_S = 10.0
_COMPARED = 5
_WORDS_BYTES = 1000
#: What messages call another value of an input, by the name of the input. Only inputs that may
#: differ between hosts are listed.
_INPUTS = {
    "qemu": "another QEMU or processor",
    "argv": "another machine (accelerator, CPU, memory or devices)",
    "agent": "another version of the guest agent",
    "image": "another image",
    "image_disk_sha256": "an image that was built again",
    "kernel": "another kernel",
}


@dataclass(frozen=True, kw_only=True)
class StoredArtifact:
    """An artifact in the shared store, described by the artifact's manifest."""

    repository: str
    tag: str
    digest: str
    pushed: dt.datetime | None
    packed_bytes: int
    needs: str | None


@dataclass(kw_only=True)
class SharedCache:
    """The repository for one cache in the shared store.

    `partial` is the folder for blobs whose pull was interrupted. If `is_writable` is false, `offer`
    pushes nothing.
    """

    client: RegistryClient
    repository: str
    partial: Path
    is_writable: bool = False

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        """Write the folder `name` to `into`. Return whether the whole folder was written.

        Report errors, and never raise StoreError. A pull may take at most half of the remaining
        time, so that the caller has time to make the folder. `inputs` are the parts of the
        folder's key. If the store has only folders with other keys, the report says which parts
        differ.
        """
        deadline = deadline.sooner(min(deadline.remaining_s() / 2, STORE_SECONDS.value))
        try:
            if self.pull(name, into, progress=progress, deadline=deadline):
                return True
            progress.report(
                Stage.CHECK,
                f"the store '{self.client.address}' has no '{name}'"
                f"{self._why_not(name, inputs, deadline)}; this host makes '{name}'",
            )
        except StoreError as error:
            progress.report(Stage.REFUSED, f"{error} This host makes '{name}'.")
        for path in into.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return False

    def pull(
        self, name: str, into: Path, *, progress: Progress, deadline: Deadline | None = None
    ) -> bool:
        """Write the folder `name` to `into`. Return False if the store does not have the folder.

        If this method raises StoreError, the caller must not use any file in `into`.
        """
        deadline = deadline or self.client.deadline()
        found = self.client.manifest(self.repository, name, deadline=deadline)
        if found is None:
            return False
        problem = f"The store '{self.client.address}' has a malformed manifest of '{name}'"
        artifact = read_artifact(found[0], problem)
        own = self.client.small_blob(
            self.repository, artifact.config, f"the description of '{name}'", deadline=deadline
        )
        files = read_files(own, name)
        check_layers(artifact.layers, files, name)
        packed = artifact.packed_bytes
        progress.report(Stage.FETCH, f"pulling {packed >> 20} MiB from '{self.client.address}'")
        meter = _Meter(packed, progress)
        budget = DataBudget(name, packed)
        done: list[Path] = []
        rest: Path | None = None
        try:
            parts = make_private_folder(self.partial)
            _remove_old(parts)
            for layer in artifact.layers:
                part = parts / f"{name}.{layer.digest.rpartition(':')[2][:KEY_DIGITS]}"
                meter.skip(part.stat().st_size if part.exists() else 0)
                self.client.fetch_blob(
                    self.repository,
                    layer.digest,
                    layer.size,
                    part,
                    what=f"the file '{layer.title}' of '{name}'",
                    progress=meter.add,
                    deadline=deadline,
                )
                done.append(part)
                if layer.media_type == FILE_TYPE:
                    with _removed_if_refused(part):
                        unpack_file(part, into / layer.title, files[layer.title], name, budget)
                else:
                    rest = part
            if rest is not None:
                with _removed_if_refused(rest):
                    unpack_rest(rest, into, name, files)
            for part in done:
                # Two files with the same content share one blob, so `done` may list a blob twice.
                part.unlink(missing_ok=True)
            self._require_safe_disk(into / DISK, name)
            (into / MANIFEST).write_bytes(own)
            (into / USED).touch()
        except OSError as error:
            for part in self.partial.glob(f"{name}.*"):
                part.unlink(missing_ok=True)
            what = f"the artifact '{name}'"
            if error.errno in FULL:
                raise StoreError(
                    f"The disk of '{into}' became full while {what} was pulled. The received data "
                    "was removed; free some space, or set XDG_CACHE_HOME to a folder on a larger "
                    "disk."
                ) from error
            raise StoreError(f"{what.capitalize()} could not be written: {error}.") from error
        return True

    def _require_safe_disk(self, disk: Path, name: str) -> None:
        try:
            reason = why_unsafe_in_a_cache(disk) if disk.exists() else None
        except HarnessError as error:
            raise StoreError(
                f"The disk of '{name}' in the store '{self.client.address}' is damaged: {error}"
            ) from error
        if reason is not None:
            raise StoreError(
                f"The disk of '{name}' in the store '{self.client.address}' {reason}, so QEMU would "
                "open another file of this host; remove the artifact from the store."
            )

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Push a folder that was just made, if `is_writable`. Report errors, and never raise them."""
        if not self.is_writable:
            return
        try:
            self.push(folder, progress=progress)
        except (HarnessError, OSError) as error:
            progress.report(
                Stage.REFUSED,
                f"{error} '{folder.name}' stays in this host's cache, and is not in the store.",
            )

    def push(self, folder: Path, *, progress: Progress) -> bool:
        """Push a published folder. Return False if the store already has the folder.

        Raises StoreError if the push fails, or if a file is damaged. The message names the file.
        """
        deadline = self.client.deadline()
        if self.client.manifest(self.repository, folder.name, deadline=deadline) is not None:
            return False
        own = (folder / MANIFEST).read_bytes()
        progress.report(Stage.PUBLISH, f"pushing it to '{self.client.address}'")
        layers: list[dict[str, Any]] = []
        sweep(self.partial)
        with leased_folder(self.partial, prefix="push") as work:
            for packed in pack(folder, work):
                what = f"the file '{packed.title}' of '{folder.name}'"
                self.client.push_blob(
                    self.repository, packed.path, packed.digest, what, deadline=deadline
                )
                layers.append(packed.descriptor())
            config = work / MANIFEST
            config.write_bytes(own)
            digest = f"sha256:{hashlib.sha256(own).hexdigest()}"
            self.client.push_blob(
                self.repository,
                config,
                digest,
                f"the description of '{folder.name}'",
                deadline=deadline,
            )
        needs = _needs(own)
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": digest, "size": len(own)},
            "layers": layers,
            "annotations": {
                CREATED: dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds"),
                **({} if needs is None else {NEEDS: needs}),
            },
        }
        content = json.dumps(manifest).encode()
        self.client.push_manifest(self.repository, folder.name, content, deadline=deadline)
        return True

    def ls(self) -> list[StoredArtifact]:
        """Return the harness's artifacts in the repository, sorted by tag."""
        deadline = self.client.deadline()
        found = []
        for tag in self.client.tags(self.repository, deadline=deadline):
            known = self.client.manifest(self.repository, tag, deadline=deadline)
            if known is not None and known[0].get("artifactType") == ARTIFACT_TYPE:
                found.append(_described(self.repository, tag, *known))
        return found

    def remove(self, artifact: StoredArtifact) -> None:
        """Remove an artifact from the store."""
        self.client.delete(self.repository, artifact.digest, f"'{artifact.tag}'")

    def _why_not(self, name: str, inputs: Mapping[str, object], deadline: Deadline) -> str:
        """Return a clause that says how the key of another artifact of this name differs, or ''."""
        if not inputs:
            return ""
        stem = name.rpartition("-")[0]
        tags = [
            tag
            for tag in self.client.tags(self.repository, deadline=deadline)
            if tag.rpartition("-")[0] == stem and tag != name
        ]
        for tag in tags[-_COMPARED:]:
            manifest, _ = self.client.manifest(self.repository, tag, deadline=deadline) or ({}, "")
            if manifest.get("artifactType") != ARTIFACT_TYPE:
                continue
            config = read_artifact(manifest, _malformed(tag)).config
            own = self.client.small_blob(
                self.repository, config, f"the description of '{tag}'", deadline=deadline
            )
            parts = read_parts(own, tag)
            wanted = json.loads(json.dumps(inputs))
            different = [
                key
                for key in sorted({*parts, *wanted})
                if parts.get(key) != wanted.get(key) and key != "parent"
            ]
            if different:
                needs = read_notes(manifest).get(NEEDS)
                words = ", ".join(
                    _INPUTS.get(key, f"another '{visible_line(key)}'") for key in different
                )
                detail = f" ({needs})" if needs else ""
                return (
                    f", only '{tag}', which was made with {shortened(words, _WORDS_BYTES)}{detail}"
                )
        return ""


class _Meter:
    """Reports the progress of a pull from time to time."""

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
    """Return the tags that equal or begin with one of `names`, or all tags if `names` is empty."""
    return [
        each.tag for each in found if not names or any(each.tag.startswith(name) for name in names)
    ]


def _described(
    repository: str, tag: str, manifest: Mapping[str, Any], digest: str
) -> StoredArtifact:
    notes = read_notes(manifest)
    return StoredArtifact(
        repository=repository,
        tag=tag,
        digest=digest,
        pushed=read_moment(notes.get(CREATED)),
        packed_bytes=read_artifact(manifest, _malformed(tag)).packed_bytes,
        needs=notes.get(NEEDS),
    )


def _malformed(tag: str) -> str:
    return f"The manifest of '{tag}' in the store is malformed"


def _needs(own: bytes) -> str | None:
    """Return the QEMU and the processor that a checkpoint's description requires, or None."""
    facts = json.loads(own).get("facts") or {}
    words = [str(facts[key]) for key in ("qemu", "processor") if key in facts]
    return ", ".join(words) or None


@contextlib.contextmanager
def _removed_if_refused(part: Path) -> Iterator[None]:
    """Remove a blob that the `with` block can't unpack. Otherwise the next pull would fail too."""
    try:
        yield
    except StoreError:
        part.unlink()
        raise


def _remove_old(parts: Path) -> None:
    """Remove leftovers of pulls that were interrupted more than a week ago."""
    limit = time.time() - _PART_AGE_S
    for path in parts.iterdir():
        # Another pull may be removing its own leftovers.
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
    """Return the shared cache of each repository, by the repository's name."""
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
"""One repository for each cache. Cloud images have no repository, since their publishers serve them."""
