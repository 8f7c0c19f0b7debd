"""`harness image`: what nodes boot from."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any

from harness.cli import bake
from harness.cli.options import add_image_options, settings_of
from harness.cli.removals import print_removals
from harness.errors import BadInputError
from harness.image.catalogue import Recipe, load_catalogue
from harness.image.derived import DerivedStore
from harness.image.source import Algorithm, LocalImage, Stock
from harness.image.stock import StockStore, Terms, open_local
from harness.image.store import ImageStore
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from harness.cli.options import Commands
    from harness.image import ImageEvent, StockImage
    from harness.image.cache import CachedImage, ImageCache
    from harness.settings import Settings

_BUILD_S = 1800.0
_FETCH_S = 7200.0
_UNUSED_DAYS = 30.0
_KEY_DIGITS = 16


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("image", help="node images")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list what the catalogue has, and what of it is here")
    build = actions.add_parser("build", help="build one where the cache lacks it")
    fetch = actions.add_parser("fetch", help="fetch and verify a stock image")
    bake.add_parser(actions, show_event)
    verify = actions.add_parser("verify", help="read every byte of each image in the cache")
    gc = actions.add_parser("gc", help="remove what nobody used for long, and what was left over")
    for action, run in ((listing, _list), (build, _build), (fetch, _fetch)):
        add_image_options(action)
        action.set_defaults(run=run)
    verify.set_defaults(run=_verify)
    gc.set_defaults(run=_collect)
    for action in (listing, build, fetch, verify, gc):
        action.add_argument("--json", action="store_true")
    fetch.add_argument("--offline", action="store_true", help="use what the cache has, or fail")
    fetch.add_argument("--update", action="store_true", help="take the latest, renew the lock")
    fetch.add_argument("--mirror", action="append", default=[], metavar="URL")
    unused = gc.add_mutually_exclusive_group()
    unused.add_argument("--unused-days", type=_days, default=_UNUSED_DAYS, metavar="DAYS")
    unused.add_argument("--all", action="store_const", const=0.0, dest="unused_days")


def _days(word: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(word) <= dt.timedelta.max.days:
            return float(word)
    raise argparse.ArgumentTypeError(f"'{word}' is no number of days; give 0 or more.")


def show_event(event: ImageEvent) -> None:
    """Print what happens to an image, for people, beside the command's own output."""
    print(f"[{event.image}] {event.stage.value}: {event.message}", file=sys.stderr, flush=True)


def _list(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    built, stock = ImageStore(settings.image_store), StockStore(settings.stock_store)
    found = []
    for name, entry in load_catalogue(settings.images_folder).entries.items():
        image = built.find(entry) if isinstance(entry, Recipe) else stock.find(entry)
        licence = entry.file.licence if isinstance(entry, Recipe) else None
        found.append(
            {
                "name": name,
                "kind": entry.file.kind,
                "description": entry.file.description,
                "licence": None if licence is None else licence.id,
                "disk": None if image is None else str(image.disk),
            }
        )
    if arguments.json:
        _print_json(found)
    else:
        for each in found:
            here = "here" if each["disk"] else "-"
            terms = f" (needs --accept-licence={each['licence']})" if each["licence"] else ""
            print(f"{each['name']:16} {each['kind']:6} {here:5} {each['description']}{terms}")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    recipe = load_catalogue(settings.images_folder).get(settings.image)
    if not isinstance(recipe, Recipe):
        raise BadInputError(
            f"'{settings.image}' is no recipe, so there is nothing to build; `harness image fetch "
            f"--image {settings.image}` gets it.",
            source="--image",
        )
    store = ImageStore(settings.image_store, accepted_licences=settings.accepted_licences)
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


def _fetched(arguments: argparse.Namespace, settings: Settings) -> StockImage:
    source = load_catalogue(settings.images_folder).get(settings.image)
    if isinstance(source, LocalImage):
        return open_local(source, Algorithm.SHA256)
    if not isinstance(source, Stock):
        raise BadInputError(
            f"'{settings.image}' is a recipe, and lies on no server; `harness image build --image "
            f"{settings.image}` makes it.",
            source="--image",
        )
    return StockStore(settings.stock_store).ensure(
        source,
        deadline=Deadline.after(_FETCH_S),
        terms=Terms(
            is_offline=arguments.offline,
            is_renewal=arguments.update,
            mirrors=arguments.mirror,
        ),
        listener=show_event,
    )


def _caches(settings: Settings) -> tuple[ImageCache[Any], ...]:
    return (
        ImageStore(settings.image_store).cache,
        StockStore(settings.stock_store).cache,
        DerivedStore(settings.derived_store).cache,
    )


def _verify(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    found = [image for cache in _caches(settings) for image in cache.verify()]
    if arguments.json:
        _print_json([_facts(image) for image in found])
    else:
        for image in found:
            if image.trouble is None:
                print(f"{image.name} {_key(image)} is what was published.")
            else:
                print(f"harness: {image.trouble}", file=sys.stderr)
    return 0 if all(image.trouble is None for image in found) else 2


def _collect(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    unused = dt.timedelta(days=arguments.unused_days)
    at = dt.datetime.now(tz=dt.timezone.utc)
    removals = [removal for cache in _caches(settings) for removal in cache.gc(unused, at=at)]
    print_removals(removals, as_json=arguments.json)
    return 0


def _key(image: CachedImage) -> str:
    return image.key.rpartition(":")[2][:_KEY_DIGITS]


def _facts(image: CachedImage) -> dict[str, object]:
    return {
        "name": image.name,
        "key": image.key,
        "folder": str(image.folder),
        "parent": image.parent,
        "size_mib": round(image.size_mib, 1),
        "last_used": image.last_used.isoformat(timespec="seconds"),
        "in_use": image.is_in_use,
        "trouble": image.trouble,
    }


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
