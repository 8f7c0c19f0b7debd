"""`harness gpu firmware`: writes firmware files that NVIDIA's driver accepts for an emulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import add_gpu_options, settings_of
from harness.errors import naming
from harness.gpu.gsp.firmware import FILES, make_firmware
from harness.gpu.gsp.layouts import read_layouts

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Actions


def add_parser(commands: Actions) -> None:
    parser = commands.add_parser(
        "firmware",
        help="write the harness's own firmware files, which NVIDIA's driver accepts for an emulated GPU",
    )
    add_gpu_options(parser)
    parser.add_argument(
        "release",
        metavar="RELEASE",
        help="the driver's release; the harness must know this release",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("firmware"),
        metavar="DIR",
        help="the folder for the files; copy its content to the node's /usr/lib/firmware "
        "(default: %(default)s)",
    )
    parser.set_defaults(run=_firmware)


def _firmware(arguments: argparse.Namespace) -> int:
    layouts = read_layouts(arguments.release, *settings_of(arguments).gpu_models)
    folder = arguments.output / "nvidia" / layouts.release
    folder.mkdir(parents=True, exist_ok=True)
    for name, families in FILES.items():
        file = folder / name
        with naming(file):
            file.write_bytes(make_firmware(layouts.release, families))
        print(file)
    return 0
