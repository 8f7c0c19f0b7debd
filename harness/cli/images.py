"""`harness image`: lists, builds, downloads, verifies and removes the images that nodes boot."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any

from harness.cli import bake
from harness.cli.artifacts import print_removals, print_verification
from harness.cli.columns import print_columns
from harness.cli.options import (
    add_image_options,
    add_json_option,
    add_store_options,
    number_of_days,
    settings_of,
)
from harness.cli.progress import show_event
from harness.errors import BadInputError
from harness.image.catalogue import Recipe, load_catalogue
from harness.image.cloud.derived_images import DerivedStore
from harness.image.cloud.source import Algorithm, CloudImageRecipe, LocalImage
from harness.image.cloud.store import CloudImageStore, FetchOptions, open_local, require_image
from harness.image.store import ImageStore
from harness.lab.shared_caches import open_image_store, open_shared_caches
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from harness.artifact_cache.cache import ArtifactCache
    from harness.cli.options import Commands
    from harness.image import CloudImage
    from harness.image.catalogue import Catalogue, Source
    from harness.settings import Settings

_BUILD_S = 1800.0
_FETCH_S = 7200.0
_UNUSED_DAYS = 30.0
_KEY_DIGITS = 16


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("image")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the catalogue, and which images are cached")
    build = actions.add_parser(
        "build", help="build an image from its recipe, unless the cache or the shared store has it"
    )
    fetch = actions.add_parser("fetch", help="download and verify a cloud image")
    bake.add_parser(actions)
    verify = actions.add_parser("verify", help="compare every file in the cache with its digest")
    gc = actions.add_parser("gc", help="remove unused images and the files of killed runs")
    for action, run in ((listing, _list), (build, _build), (fetch, _fetch)):
        add_image_options(action)
        action.set_defaults(run=run)
    verify.set_defaults(run=_verify)
    gc.set_defaults(run=_collect)
    for action in (listing, build, fetch, verify, gc):
        add_json_option(action)
    add_store_options(build)
    fetch.add_argument(
        "--offline",
        action="store_true",
        help="use the image in the cache, without a network; fail if the cache has no such image",
    )
    fetch.add_argument(
        "--update", action="store_true", help="fetch the latest image, and pin it in the lock file"
    )
    fetch.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="URL",
        help="the URL (http, https or file) of a folder to try before the recipe's location; may be repeated",
    )
    unused = gc.add_mutually_exclusive_group()
    unused.add_argument(
        "--unused-days",
        type=number_of_days,
        default=_UNUSED_DAYS,
        metavar="DAYS",
        help="remove images that were not used for this number of days (default: %(default)g)",
    )
    unused.add_argument(
        "--all",
        action="store_const",
        const=0.0,
        dest="unused_days",
        help="remove every image that is not in use",
    )


def _list(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    built, fetched = ImageStore(settings.image_store), CloudImageStore(settings.cloud_image_store)
    catalogue = load_catalogue(*settings.image_folders)
    for error in catalogue.errors:
        print(f"harness: {error}", file=sys.stderr)
    every = [_described(catalogue, name, built, fetched) for name in catalogue.files]
    found = [each for each in every if "problem" not in each]
    broken = [each for each in every if "problem" in each]
    if arguments.json:
        _print_json(every)
    else:
        print_columns(
            ("NAME", "KIND", "CACHED", "DESCRIPTION"),
            [
                (
                    str(each["name"]),
                    str(each["kind"]),
                    "yes" if each["disk"] else "no",
                    f"{each['description']}"
                    + (f" (needs --accept-licence={each['licence']})" if each["licence"] else ""),
                )
                for each in found
            ],
        )
    for each in broken:
        print(f"harness: {each['problem']}", file=sys.stderr)
    return 2 if broken else 0


def _described(
    catalogue: Catalogue, name: str, built: ImageStore, fetched: CloudImageStore
) -> Mapping[str, str | None]:
    """Return an image's row of the list; if the recipe is wrong, the row has only name and `problem`."""
    try:
        return _row(catalogue.read(name), built, fetched)
    except BadInputError as error:
        return {"name": name, "problem": str(error)}


def _row(entry: Source, built: ImageStore, fetched: CloudImageStore) -> Mapping[str, str | None]:
    licence = None
    if isinstance(entry, Recipe):
        image = built.find(entry)
        disk = None if image is None else image.disk
        licence = entry.file.licence
    elif isinstance(entry, LocalImage):
        disk = entry.path if entry.path.is_file() else None
    else:
        cloud_image = fetched.find(entry)
        disk = None if cloud_image is None else cloud_image.disk
    return {
        "name": entry.name,
        "kind": entry.file.kind,
        "description": entry.file.description,
        "licence": None if licence is None else licence.id,
        "disk": None if disk is None else str(disk),
    }


def _build(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    recipe = load_catalogue(*settings.image_folders).get(settings.image)
    if isinstance(recipe, LocalImage):
        require_image(recipe)
        raise BadInputError(
            f"'{settings.image}' is an image file, which needs no build; the first test that uses "
            "it makes a node image from it.",
            source="--image",
        )
    if not isinstance(recipe, Recipe):
        raise BadInputError(
            f"'{settings.image}' is a cloud image and is not built; `harness image fetch --image "
            f"{settings.image}` downloads it.",
            source="--image",
        )
    store = open_image_store(settings, open_shared_caches(settings))
    image = store.ensure(recipe, deadline=Deadline.after(_BUILD_S), listener=show_event)
    kernels = [kernel.version for kernel in image.kernels]
    size_mib = image.disk.stat().st_size >> 20
    if arguments.json:
        _print_json(
            {
                "name": image.name,
                "key": image.key,
                "disk": str(image.disk),
                "kernels": kernels,
                "size_mib": size_mib,
            }
        )
    else:
        print(f"{image.disk} ({size_mib} MiB), kernels {', '.join(kernels)}")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    image = _fetched(arguments, settings)
    size_mib = image.disk.stat().st_size >> 20
    if arguments.json:
        _print_json(
            {
                "name": image.name,
                "digest": image.digest,
                "disk": str(image.disk),
                "size_mib": size_mib,
                "virtual_mib": image.virtual_bytes >> 20,
            }
        )
    else:
        print(f"{image.disk} ({size_mib} MiB), {image.digest}")
    return 0


def _fetched(arguments: argparse.Namespace, settings: Settings) -> CloudImage:
    source = load_catalogue(*settings.image_folders).get(settings.image)
    if isinstance(source, LocalImage):
        return open_local(source, Algorithm.SHA256)
    if not isinstance(source, CloudImageRecipe):
        raise BadInputError(
            f"'{settings.image}' is built from a recipe and is not downloaded; `harness image build "
            f"--image {settings.image}` builds it.",
            source="--image",
        )
    return CloudImageStore(settings.cloud_image_store).ensure(
        source,
        deadline=Deadline.after(_FETCH_S),
        options=FetchOptions(
            is_offline=arguments.offline,
            is_renewal=arguments.update,
            mirrors=arguments.mirror,
        ),
        listener=show_event,
    )


def _caches(settings: Settings) -> tuple[ArtifactCache[Any], ...]:
    return (
        ImageStore(settings.image_store).cache,
        CloudImageStore(settings.cloud_image_store).cache,
        DerivedStore(settings.derived_store).cache,
    )


def _verify(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    found = [image for cache in _caches(settings) for image in cache.verify()]
    return print_verification(found, key_digits=_KEY_DIGITS, as_json=arguments.json)


def _collect(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    unused = dt.timedelta(days=arguments.unused_days)
    at = dt.datetime.now(tz=dt.timezone.utc)
    removals = [
        removal for cache in _caches(settings) for removal in cache.collect_unused(unused, at=at)
    ]
    print_removals(removals, as_json=arguments.json)
    return 0


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
