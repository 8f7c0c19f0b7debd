"""`harness store`: shares images and checkpoints between hosts through a registry."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

from harness.artifact_cache import DISK
from harness.artifact_cache.cache import ArtifactCache
from harness.cli.columns import print_columns
from harness.cli.options import add_json_option, number_of_days, settings_of
from harness.cli.progress import show_event
from harness.errors import BadInputError, HarnessError, listed
from harness.image.cloud.derived_images import DERIVED_FORMAT
from harness.image.formats.qcow2 import backing_name, has_absolute_backing
from harness.image.manifest import IMAGE_FORMAT
from harness.lab.shared_caches import open_shared_caches
from harness.machine.checkpoint.manifest import CHECKPOINT_FORMAT
from harness.progress import Progress
from harness.provisioning.wait import Deadline
from harness.settings import STORE_VARIABLE
from harness.shared_store.source import needed_artifacts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.artifact_cache import StagingFolder
    from harness.artifact_cache.manifest import ManifestFormat
    from harness.cli.options import Commands
    from harness.settings import Settings
    from harness.shared_store.source import SharedCache, StoredArtifact

_PULL_S = 7200.0
_UNUSED_DAYS = 30.0


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("store")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    push = actions.add_parser("push", help="push images and checkpoints from this host's cache")
    pull = actions.add_parser("pull", help="pull images and checkpoints into this host's cache")
    listing = actions.add_parser("ls", help="list the images and checkpoints in the store")
    gc = actions.add_parser("gc", help="remove old images and checkpoints from the store")
    for action, run in ((push, _push), (pull, _pull), (listing, _list), (gc, _collect)):
        action.add_argument(
            "--store",
            metavar="URL",
            help=f"the registry, such as registry.example:5000/team (default: {STORE_VARIABLE})",
        )
        action.set_defaults(run=run)
    for action in (push, pull):
        action.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="only images and checkpoints whose name begins with this text, such as debian-12 (default: all)",
        )
    gc.add_argument(
        "--older-than-days",
        type=number_of_days,
        default=_UNUSED_DAYS,
        metavar="DAYS",
        help="remove images and checkpoints that were pushed more than this number of days ago (default: %(default)g)",
    )
    add_json_option(listing)


def _shared(settings: Settings) -> Mapping[str, SharedCache]:
    if settings.store is None:
        raise BadInputError(
            f"Name the registry by --store or {STORE_VARIABLE}, for example registry.example:5000/team.",
            source="--store",
        )
    return open_shared_caches(settings)


def _local(settings: Settings) -> dict[str, tuple[Path, ManifestFormat[Any]]]:
    """Return the folder and the manifest format of each local cache, by the kind of its artifacts."""
    return {
        "images": (settings.image_store, IMAGE_FORMAT),
        "derived": (settings.derived_store, DERIVED_FORMAT),
        "checkpoints": (settings.checkpoint_store, CHECKPOINT_FORMAT),
    }


def _push(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    shared = _shared(settings)
    failures = 0
    local = _local(settings)
    found = {
        kind: ArtifactCache(folder, manifests=manifests).ls()
        for kind, (folder, manifests) in local.items()
    }
    there = [artifact.folder.name for artifacts in found.values() for artifact in artifacts]
    _require_all(arguments.names, there, "The cache")
    for kind, (_, manifests) in local.items():
        for artifact in found[kind]:
            name = artifact.folder.name
            if arguments.names and not name.startswith(tuple(arguments.names)):
                continue
            progress = Progress(name, show_event)
            try:
                manifests.check_structure(artifact.folder, manifests.read(artifact.folder))
                _require_movable(artifact.folder)
                is_new = shared[kind].push(artifact.folder, progress=progress)
            except HarnessError as error:
                print(f"{kind}/{name}: not pushed: {error}")
                failures += 1
                continue
            print(f"{kind}/{name}: {'pushed' if is_new else 'the store has it'}")
    return 2 if failures else 0


def _require_movable(folder: Path) -> None:
    """Raise HarnessError if the folder's disk refers to its backing file by an absolute path."""
    disk = folder / DISK
    if disk.exists() and has_absolute_backing(disk):
        raise HarnessError(
            f"The disk '{disk}' refers to its backing file by an absolute path on this host "
            f"('{backing_name(disk)}'); remove the folder '{folder}', and the next run makes a disk that can "
            "be moved to another host."
        )


def _pull(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    shared = _shared(settings)
    found = {kind: shared[kind].ls() for kind in _local(settings)}
    there = [artifact.tag for artifacts in found.values() for artifact in artifacts]
    place = f"The store '{settings.store}'"
    _require_all(arguments.names, there, place)
    if not there:
        raise BadInputError(f"{place} is empty; push something first.", source="NAME")
    for kind, (folder, manifests) in _local(settings).items():
        for name in needed_artifacts(found[kind], arguments.names):
            _pull_one(shared[kind], folder, manifests, name)
            print(f"{kind}/{name}: in the cache")
    return 0


def _require_all(names: Sequence[str], there: Sequence[str], place: str) -> None:
    """Raise BadInputError unless each of `names` is the beginning of at least one name in `there`."""
    for name in names:
        if not name or not any(each.startswith(name) for each in there):
            raise BadInputError(
                f"{place} has nothing whose name begins with '{name}'; it has: {listed(there)}.",
                source="NAME",
            )


def _pull_one(
    shared: SharedCache, folder: Path, manifests: ManifestFormat[Any], name: str
) -> None:
    progress = Progress(name, show_event)

    def fill(staging: StagingFolder) -> None:
        if not shared.pull(name, staging.content, progress=progress):
            raise HarnessError(f"'{name}' was removed from the store during the pull.")
        # Check before the artifact is published: a later check would find damage only at the first
        # use.
        manifests.check(staging.content, manifests.read(staging.content).key)

    def opened() -> None:
        place = folder / name
        manifests.check(place, manifests.read(place).key)

    ArtifactCache(folder, manifests=manifests).store.ensure(
        folder / name,
        opened=opened,
        fill=fill,
        progress=progress,
        deadline=Deadline.after(_PULL_S),
    )


def _stored(arguments: argparse.Namespace) -> Iterator[tuple[SharedCache, StoredArtifact]]:
    for cache in _shared(settings_of(arguments)).values():
        for artifact in cache.ls():
            yield cache, artifact


def _list(arguments: argparse.Namespace) -> int:
    found = [artifact for _, artifact in _stored(arguments)]
    if arguments.json:
        facts = [
            {
                "kind": each.repository,
                "name": each.tag,
                "digest": each.digest,
                "pushed": None if each.pushed is None else each.pushed.isoformat(),
                "mib": round(each.packed_bytes / (1 << 20), 1),
                "needs": each.needs,
            }
            for each in found
        ]
        print(json.dumps(facts, indent=2))
        return 0
    print_columns(
        ("KIND", "NAME", "MIB", "PUSHED", "NEEDS"),
        [
            (
                each.repository,
                each.tag,
                f"{each.packed_bytes >> 20}",
                "-" if each.pushed is None else f"{each.pushed:%Y-%m-%d %H:%M}",
                each.needs or "-",
            )
            for each in found
        ],
    )
    return 0


def _collect(arguments: argparse.Namespace) -> int:
    age = dt.timedelta(days=arguments.older_than_days)
    limit = dt.datetime.now(tz=dt.timezone.utc) - age
    for cache, artifact in _stored(arguments):
        if artifact.pushed is None:
            print(
                f"Kept {artifact.repository}/{artifact.tag}, which does not say when it was pushed"
            )
        elif artifact.pushed <= limit:
            cache.remove(artifact)
            print(f"Removed {artifact.repository}/{artifact.tag}")
    return 0
