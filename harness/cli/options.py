"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.machine.accelerator import CHOICES
from harness.settings import (
    ACCEPT_OPTION,
    DRIVER_CHOICES,
    DRIVER_VARIABLE,
    STORAGE_VARIABLE,
    URI_VARIABLE,
    Settings,
    accepted_licences,
    far_path,
    first_of,
    is_ci,
)

if TYPE_CHECKING:
    import argparse


class Commands(Protocol):
    """What argparse's `add_subparsers` returns; its class has no public name."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002
        ...


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how machines run."""
    defaults = Settings()
    parser.add_argument("--accelerator", choices=CHOICES, default=defaults.accelerator)
    parser.add_argument("--qemu", default=defaults.qemu, metavar="PROGRAM")
    add_driver_options(parser)
    add_image_options(parser)
    add_checkpoint_options(parser)


def add_driver_options(parser: argparse.ArgumentParser) -> None:
    """Add what runs machines, and where."""
    parser.add_argument("--machine-driver", choices=DRIVER_CHOICES)
    parser.add_argument("--machine-uri", metavar="URI")
    parser.add_argument("--machine-storage", metavar="DIR")


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Add how much disk checkpoints may take."""
    parser.add_argument(
        "--checkpoint-limit-mib",
        type=int,
        default=Settings().checkpoint_limit_mib,
        metavar="MIB",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which image, and where recipes lie."""
    defaults = Settings()
    parser.add_argument("--image", default=defaults.image, metavar="NAME")
    parser.add_argument("--images-dir", type=Path, default=defaults.images_folder, metavar="DIR")
    parser.add_argument(ACCEPT_OPTION, action="append", default=[], metavar="LICENCE")


def add_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Add where GPU models lie."""
    parser.add_argument(
        "--gpu-models",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a folder of GPU models beside those that come with the harness; may be repeated",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that parsed arguments ask for."""
    defaults = Settings()
    return Settings(
        accelerator=getattr(arguments, "accelerator", defaults.accelerator),
        qemu=getattr(arguments, "qemu", defaults.qemu),
        machine_driver=first_of(getattr(arguments, "machine_driver", None), DRIVER_VARIABLE)
        or defaults.machine_driver,
        machine_uri=first_of(getattr(arguments, "machine_uri", None), URI_VARIABLE),
        machine_storage=far_path(
            first_of(getattr(arguments, "machine_storage", None), STORAGE_VARIABLE)
        ),
        image=getattr(arguments, "image", defaults.image),
        gpu_models=tuple(getattr(arguments, "gpu_models", defaults.gpu_models)),
        images_folder=getattr(arguments, "images_dir", defaults.images_folder),
        checkpoint_limit_mib=getattr(
            arguments, "checkpoint_limit_mib", defaults.checkpoint_limit_mib
        ),
        accepted_licences=accepted_licences(getattr(arguments, "accept_licence", [])),
        ci=is_ci(),
    )
