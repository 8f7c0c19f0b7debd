"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.settings import (
    ACCEPT_OPTION,
    ACCEPT_VARIABLE,
    DRIVER_VARIABLE,
    INVENTORY,
    INVENTORY_VARIABLE,
    POOL_VARIABLE,
    STORE_VARIABLE,
    TIMEOUT_VARIABLE,
    URI_VARIABLE,
    AcceleratorOption,
    MachineDriver,
    Settings,
    accepted_licences,
    first_of,
    first_path,
    is_ci,
    machine_driver,
    timeout_multiplier,
)

if TYPE_CHECKING:
    import argparse


class Commands(Protocol):
    """Where a module adds its commands; what each is for is in the table of `harness.cli`."""

    def add_parser(self, name: str) -> argparse.ArgumentParser: ...


class Actions(Protocol):
    """What argparse's `add_subparsers` returns; its class has no public name."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:  # noqa: A002
        ...


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the choice of output for programs."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for how machines run."""
    defaults = Settings()
    parser.add_argument(
        "--accelerator",
        choices=AcceleratorOption.words(),
        default=defaults.accelerator.value,
        help="how guests run; auto uses KVM where it works, else TCG (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout-multiplier",
        metavar="FACTOR",
        help="factor for all waits on guests, such as 3 on a slow host "
        f"(default: {TIMEOUT_VARIABLE}, else 1)",
    )
    parser.add_argument(
        "--qemu",
        default=defaults.qemu,
        metavar="PROGRAM",
        help="the QEMU program (default: %(default)s)",
    )
    add_driver_options(parser)
    add_image_options(parser)
    add_checkpoint_options(parser)
    add_store_options(parser)


def machine_words(settings: Settings) -> list[str]:
    """Return the options by which another command starts the machines of these settings."""
    named = {
        "--accelerator": settings.accelerator.value,
        "--timeout-multiplier": str(settings.timeout_multiplier),
        "--qemu": settings.qemu,
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


def add_driver_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for what runs machines."""
    parser.add_argument(
        "--machine-driver",
        metavar="NAME",
        help=f"what runs machines: {', '.join(MachineDriver.words())}, or the VM driver of an installed "
        "package; node runs none, and needs the URI of an existing node "
        f"(default: {DRIVER_VARIABLE}, else {Settings().machine_driver})",
    )
    parser.add_argument(
        "--machine-uri",
        metavar="URI",
        help="libvirt's URI, such as qemu:///session, or a node's, such as ssh://root@HOST "
        f"(default: {URI_VARIABLE})",
    )


def add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    """Add the limit of the checkpoint cache."""
    parser.add_argument(
        "--checkpoint-limit-mib",
        type=int,
        default=Settings().checkpoint_limit_mib,
        metavar="MIB",
        help="disk space that checkpoints may take before the least recently used are removed "
        "(default: %(default)s)",
    )


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add the shared store."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="registry that has images and checkpoints of other hosts, such as "
        f"registry.example:5000/team; what it lacks is made here (default: {STORE_VARIABLE})",
    )
    parser.add_argument(
        "--store-push",
        action="store_true",
        help="push what is made here to the registry of --store; without it the store is only read",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for which image, and where the recipes are."""
    defaults = Settings()
    parser.add_argument(
        "--image",
        default=defaults.image,
        metavar="NAME|PATH|URL",
        help="an image of the catalogue, the path of a qcow2 or raw file, or "
        "https://HOST/FILE#sha256=DIGEST (default: %(default)s)",
    )
    parser.add_argument(
        "--images-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a folder of image recipes beside those that come with the harness; may be repeated",
    )
    parser.add_argument(
        ACCEPT_OPTION,
        action="append",
        default=[],
        metavar="LICENCE",
        help="a licence that you accept, for images that need it; may be repeated "
        f"(also: {ACCEPT_VARIABLE})",
    )


def add_provisioner_option(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a provisioner."""
    parser.add_argument(
        "--provisioner",
        default=Settings().provisioner,
        metavar="NAME|PATH",
        help="the provisioner of nodes: its name, or the path of its YAML file "
        "(default: %(default)s)",
    )


def add_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Add the folders of GPU models."""
    parser.add_argument(
        "--gpu-models",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a folder of GPU models beside those that come with the harness; may be repeated",
    )


def add_host_gpu_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for which GPUs of this host may be taken, and where leases are kept."""
    add_gpu_options(parser)
    parser.add_argument(
        "--gpu-inventory",
        metavar="FILE",
        help="which of this host's GPUs tests may take "
        f"(default: {INVENTORY_VARIABLE}, else {INVENTORY} if it exists)",
    )
    parser.add_argument(
        "--gpu-pool-dir",
        metavar="DIR",
        help="folder of the leases of this host's GPUs, shared by all users "
        f"(default: {POOL_VARIABLE}, else {Settings().gpu_pool_folder})",
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings that parsed arguments ask for."""
    defaults = Settings()
    return Settings(
        accelerator=AcceleratorOption(
            getattr(arguments, "accelerator", defaults.accelerator.value)
        ),
        timeout_multiplier=timeout_multiplier(getattr(arguments, "timeout_multiplier", None)),
        qemu=getattr(arguments, "qemu", defaults.qemu),
        machine_driver=machine_driver(getattr(arguments, "machine_driver", None)),
        machine_uri=first_of(getattr(arguments, "machine_uri", None), URI_VARIABLE),
        image=getattr(arguments, "image", defaults.image),
        gpu_models=tuple(getattr(arguments, "gpu_models", defaults.gpu_models)),
        gpu_inventory=first_path(getattr(arguments, "gpu_inventory", None), INVENTORY_VARIABLE),
        gpu_pool_folder=first_path(getattr(arguments, "gpu_pool_dir", None), POOL_VARIABLE)
        or defaults.gpu_pool_folder,
        image_folders=tuple(getattr(arguments, "images_dir", defaults.image_folders)),
        provisioner=getattr(arguments, "provisioner", defaults.provisioner),
        checkpoint_limit_mib=getattr(
            arguments, "checkpoint_limit_mib", defaults.checkpoint_limit_mib
        ),
        store=first_of(getattr(arguments, "store", None), STORE_VARIABLE),
        is_store_writable=getattr(arguments, "store_push", False),
        accepted_licences=accepted_licences(getattr(arguments, "accept_licence", [])),
        ci=is_ci(),
    )
