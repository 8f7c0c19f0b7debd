"""`harness image bake`: bakes the GPU driver into an image, for the cache or as a file."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import (
    add_json_option,
    add_machine_options,
    add_provisioner_option,
    settings_of,
)
from harness.cli.progress import show_event
from harness.errors import BadInputError
from harness.image import CloudImage, DriverImage
from harness.image.catalogue import Recipe, load_catalogue
from harness.lab import Lab
from harness.lab.bakes import bake_cloud_image, bake_node, write_standalone

if TYPE_CHECKING:
    from harness.cli.options import Actions
    from harness.image import Image
    from harness.settings import Settings

_REFERENCE = re.compile(r"(?P<repository>[a-z0-9./:-]+):(?P<version>[0-9.]+)-(?P<sha>[0-9a-z]+)")


def add_parser(actions: Actions) -> None:
    parser = actions.add_parser(
        "bake",
        help="run a provisioner's bake command in an image, such as to install a GPU driver",
    )
    add_machine_options(parser)
    add_provisioner_option(parser)
    parser.add_argument(
        "--driver",
        type=_driver,
        metavar="REPOSITORY:VERSION-SHA",
        help="the driver's container image, for a cloud image whose recipe names no driver",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="also write the disk as a qcow2 file without a backing file",
    )
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _driver(word: str) -> DriverImage:
    found = _REFERENCE.fullmatch(word)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{word}' does not have the form REPOSITORY:VERSION-SHA")
    return DriverImage(**found.groupdict())


def _run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    _refuse_before_work(arguments, settings)
    with Lab.open(settings, show_event) as lab:
        baked = _bake(lab, arguments)
        disk = (
            baked.disk if arguments.output is None else write_standalone(baked, arguments.output)
        )
    size_mib = disk.stat().st_size >> 20
    if arguments.json:
        print(json.dumps({"name": baked.name, "disk": str(disk), "size_mib": size_mib}, indent=2))
    else:
        print(f"{disk} ({size_mib} MiB)")
    return 0


def _refuse_before_work(arguments: argparse.Namespace, settings: Settings) -> None:
    """Refuse bad input at once; otherwise the input would cause an error only after minutes of work."""
    output: Path | None = arguments.output
    if output is not None and output.exists():
        raise BadInputError(f"'{output}' exists; give the path of a new file.", source="--output")
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInputError(
            f"The folder '{output.parent}' does not exist; create it first.", source="--output"
        )
    source = load_catalogue(*settings.image_folders).get(settings.image)
    if arguments.driver is not None and isinstance(source, Recipe):
        raise BadInputError(
            f"This option can't replace the driver that the recipe of '{settings.image}' names; "
            "change the driver in that recipe.",
            source="--driver",
        )


def _bake(lab: Lab, arguments: argparse.Namespace) -> Image | CloudImage:
    name = lab.settings.image
    if isinstance(load_catalogue(*lab.settings.image_folders).get(name), Recipe):
        return bake_node(lab, name)
    return bake_cloud_image(lab, lab.cloud_image(name), driver=arguments.driver)
