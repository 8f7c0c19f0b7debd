"""`harness image bake`: an image with the driver in it, to keep or to hand on."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import add_machine_options, settings_of
from harness.errors import BadInputError
from harness.image import DriverImage, StockImage
from harness.image.catalogue import Recipe, load_catalogue
from harness.lab import open_lab
from harness.lab.bakes import bake_node, bake_stock, write_alone

if TYPE_CHECKING:
    from harness.cli.options import Commands
    from harness.image import Image, ImageListener
    from harness.lab import Lab
    from harness.settings import Settings

_REFERENCE = re.compile(r"(?P<repository>[a-z0-9./:-]+):(?P<version>[0-9.]+)-(?P<sha>[0-9a-z]+)")


def add_parser(actions: Commands, listener: ImageListener) -> None:
    """Add the action `bake`, which tells `listener` how far it is."""
    parser = actions.add_parser("bake", help="bake the driver into an image")
    add_machine_options(parser)
    parser.add_argument(
        "--driver",
        type=_driver,
        metavar="REPOSITORY:VERSION-SHA",
        help="the driver's container image, where the image's entry does not name it",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write a qcow2 there that depends on no other"
    )
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=lambda arguments: _run(arguments, listener))


def _driver(word: str) -> DriverImage:
    found = _REFERENCE.fullmatch(word)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{word}' has not the form REPOSITORY:VERSION-SHA")
    return DriverImage(**found.groupdict())


def _run(arguments: argparse.Namespace, listener: ImageListener) -> int:
    settings = settings_of(arguments)
    _refuse_before_work(arguments, settings)
    with open_lab(settings, listener) as lab:
        baked = _bake(lab, arguments)
        disk = baked.disk if arguments.output is None else write_alone(baked, arguments.output)
    size_mib = disk.stat().st_size >> 20
    if arguments.json:
        print(json.dumps({"name": baked.name, "disk": str(disk), "size_mib": size_mib}, indent=2))
    else:
        print(f"{disk} ({size_mib} MiB)")
    return 0


def _refuse_before_work(arguments: argparse.Namespace, settings: Settings) -> None:
    """Refuse what would fail after minutes of work."""
    output: Path | None = arguments.output
    if output is not None and output.exists():
        raise BadInputError(f"'{output}' is there already; name a new file.", source="--output")
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInputError(f"There is no folder '{output.parent}'.", source="--output")
    source = load_catalogue(settings.images_folder).get(settings.image)
    if arguments.driver is not None and isinstance(source, Recipe):
        raise BadInputError(
            f"The driver of '{settings.image}' is the one that its recipe names; change it there.",
            source="--driver",
        )


def _bake(lab: Lab, arguments: argparse.Namespace) -> Image | StockImage:
    name = lab.settings.image
    if isinstance(load_catalogue(lab.settings.images_folder).get(name), Recipe):
        return bake_node(lab, name)
    return bake_stock(lab, lab.stock_image(name), driver=arguments.driver)
