"""`harness image`: what nodes boot from."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from harness.cli.options import add_image_options, settings_of
from harness.image.catalogue import load_catalogue
from harness.image.store import ImageStore
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands
    from harness.image import ImageEvent

_BUILD_S = 1800.0


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("image", help="node images")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the recipes")
    build = actions.add_parser("build", help="build one where the cache lacks it")
    for action, run in ((listing, _list), (build, _build)):
        add_image_options(action)
        action.add_argument("--json", action="store_true")
        action.set_defaults(run=run)


def _list(arguments: argparse.Namespace) -> int:
    catalogue = load_catalogue(settings_of(arguments).images_folder)
    recipes = [
        {
            "name": name,
            "description": recipe.file.description,
            "licence": None if recipe.file.licence is None else recipe.file.licence.id,
        }
        for name, recipe in catalogue.recipes.items()
    ]
    if arguments.json:
        print(json.dumps(recipes, indent=2))
    else:
        for recipe in recipes:
            terms = f" (needs --accept-licence={recipe['licence']})" if recipe["licence"] else ""
            print(f"{recipe['name']:16} {recipe['description']}{terms}")
    return 0


def show_event(event: ImageEvent) -> None:
    """Print what happens to an image, for people, beside the command's own output."""
    print(f"[{event.image}] {event.stage.value}: {event.message}", file=sys.stderr, flush=True)


def _build(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    recipe = load_catalogue(settings.images_folder).get(settings.image)
    store = ImageStore(settings.image_store, accepted_licences=settings.accepted_licences)
    image = store.ensure(recipe, deadline=Deadline.after(_BUILD_S), listener=show_event)
    kernels = [kernel.version for kernel in image.kernels]
    size_mib = image.disk.stat().st_size >> 20
    if arguments.json:
        facts = {
            "name": image.name,
            "key": image.key,
            "disk": str(image.disk),
            "kernels": kernels,
            "size_mib": size_mib,
        }
        print(json.dumps(facts, indent=2))
    else:
        print(f"{image.disk} ({size_mib} MiB), kernels {', '.join(kernels)}")
    return 0
