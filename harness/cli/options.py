"""Adds options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import Protocol

from harness.options import add_to_command, settings_from
from harness.settings import ACCEPT_OPTION, Settings

#: A time before now by more days could be earlier than the first date that Python supports.
_MOST_DAYS = 36_500


class Commands(Protocol):
    """The parser to which a module adds its commands; the commands' help texts are in `harness.cli`."""

    def add_parser(self, name: str) -> argparse.ArgumentParser: ...


class Actions(Protocol):
    """The result of argparse's `add_subparsers`; argparse has no public name for the result's class."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002
        ...


def whole_number(word: str) -> int:
    """Parse a whole number of 0 or more."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number is expected, but got '{word}'.")
    return int(word)


def positive_number(word: str) -> int:
    """Parse a whole number of at least 1."""
    if not (word.isdecimal() and int(word) > 0):
        raise argparse.ArgumentTypeError(
            f"a whole number of at least 1 is expected, but got '{word}'."
        )
    return int(word)


def quantity(word: str) -> float:
    """Parse a finite number of 0 or more."""
    with contextlib.suppress(ValueError):
        if 0 <= float(word) < math.inf:
            return float(word)
    raise argparse.ArgumentTypeError(f"a number of 0 or more is expected, but got '{word}'.")


def positive_quantity(word: str) -> float:
    """Parse a finite number greater than 0."""
    with contextlib.suppress(ValueError):
        if 0 < float(word) < math.inf:
            return float(word)
    raise argparse.ArgumentTypeError(f"a number greater than 0 is expected, but got '{word}'.")


def number_of_days(word: str) -> float:
    """Parse a number of days from 0 to a hundred years."""
    with contextlib.suppress(ValueError):
        if 0 <= float(word) <= _MOST_DAYS:
            return float(word)
    raise argparse.ArgumentTypeError(
        f"'{word}' is not a number of days; give a number from 0 to {_MOST_DAYS}."
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json`, for output that programs read."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine how machines run."""
    add_to_command(parser, "--accelerator", "--timeout-multiplier", "--qemu", "--gpu-emulation")
    add_to_command(parser, "--machine-driver", "--machine-uri")
    add_image_options(parser)
    add_to_command(parser, "--checkpoint-limit-mib")
    add_store_options(parser)


def machine_words(settings: Settings) -> list[str]:
    """Return the options with which another `harness` command starts machines according to `settings`."""
    named = {
        "--accelerator": settings.accelerator.value,
        "--timeout-multiplier": str(settings.timeout_multiplier),
        "--qemu": settings.qemu,
        "--gpu-emulation": settings.gpu_emulation and settings.gpu_emulation.value,
        "--machine-driver": str(settings.machine_driver),
        "--machine-uri": settings.machine_uri,
        "--image": settings.image,
        "--checkpoint-limit-mib": str(settings.checkpoint_limit_mib),
        "--store": settings.store,
    }
    return [
        *(f"{option}={value}" for option, value in named.items() if value is not None),
        *(f"--images-dir={folder}" for folder in settings.image_folders),
        *(f"{ACCEPT_OPTION}={licence}" for licence in settings.accepted_licences),
    ]


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the shared store."""
    add_to_command(parser, "--store", "--store-push")


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the image and the folders of image recipes."""
    add_to_command(parser, "--image", "--images-dir", ACCEPT_OPTION)


def add_provisioner_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a provisioner."""
    add_to_command(parser, "--provisioner")


def add_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for folders of GPU models."""
    add_to_command(parser, "--gpu-models")


def add_host_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select this host's GPUs for tests and the folder of GPU leases."""
    add_to_command(parser, "--gpu-models", "--gpu-inventory", "--gpu-pool-dir")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that parsed arguments specify."""
    return settings_from(lambda name: getattr(arguments, name, None))
