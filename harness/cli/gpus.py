"""`harness gpu`: lists the GPU models that machines can have, and the GPUs of this host."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from harness.cli import gpu_firmware, gpu_release, host_gpus
from harness.cli.columns import print_columns
from harness.cli.options import add_gpu_options, add_json_option, settings_of
from harness.gpu.catalogue import load_catalogue

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands
    from harness.gpu import Bar, Bars, GpuModel
    from harness.gpu.catalogue import Catalogue


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("gpu")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the GPU models and GPU nodes of the catalogue")
    add_gpu_options(listing)
    add_json_option(listing)
    listing.set_defaults(run=_list)
    host_gpus.add_parser(actions)
    gpu_release.add_parser(actions)
    gpu_firmware.add_parser(actions)


def _list(arguments: argparse.Namespace) -> int:
    catalogue = load_catalogue(*settings_of(arguments).gpu_models)
    for error in catalogue.errors:
        print(f"harness: {error}", file=sys.stderr)
    if arguments.json:
        document = {
            "models": [_facts(model) for model in catalogue.models.values()],
            "nodes": [
                {
                    "name": node.name,
                    "title": node.title,
                    "model": node.model.name,
                    "count": node.count,
                    "vm_size": node.vm_size,
                    "needs_fabric_manager": node.needs_fabric_manager,
                }
                for node in catalogue.nodes.values()
            ],
        }
        print(json.dumps(document, indent=2))
    else:
        _show(catalogue)
    return 0


def _facts(model: GpuModel) -> dict[str, object]:
    return {
        "name": model.name,
        "title": model.title,
        "architecture": model.architecture,
        "vendor": f"{model.pci.vendor:04x}",
        "device": f"{model.pci.device:04x}",
        "subsystem_vendor": f"{model.pci.subsystem_vendor:04x}",
        "subsystem": f"{model.pci.subsystem:04x}",
        "class_code": f"{model.pci.class_code:06x}",
        "revision": f"{model.pci.revision:02x}",
        "ids_from": model.ids_from,
        "bars": {
            "mpqemu": _bar_facts(model.bars.mpqemu),
            "vfio_user": _bar_facts(model.bars.vfio_user),
        },
        "boot_registers": {
            f"{offset:#x}": f"{value:#010x}" for offset, value in model.boot_registers.items()
        },
        "driver_kinds": list(model.driver_kinds),
        "has_mig": model.has_mig,
    }


def _bar_facts(bars: Bars) -> dict[str, dict[str, int]]:
    return {str(index): {"mib": bar.mib, "bits": bar.bits} for index, bar in sorted(bars.items())}


def _show(catalogue: Catalogue) -> None:
    print_columns(
        ("MODEL", "PCI ID", "SUBSYSTEM", "BARS", "DRIVER", "MIG", "TITLE"),
        [
            (
                model.name,
                str(model.pci),
                f"{model.pci.subsystem_vendor:04x}:{model.pci.subsystem:04x}",
                ",".join(_size(bar) for _, bar in sorted(model.bars.vfio_user.items())),
                ",".join(model.driver_kinds),
                "yes" if model.has_mig else "no",
                model.title,
            )
            for model in catalogue.models.values()
        ],
    )
    print()
    print_columns(
        ("NODE", "GPUS", "VM SIZE", "FABRIC MANAGER"),
        [
            (
                node.name,
                f"{node.count} x {node.model.name}",
                node.vm_size,
                "yes" if node.needs_fabric_manager else "no",
            )
            for node in catalogue.nodes.values()
        ],
    )


def _size(bar: Bar) -> str:
    return f"{bar.mib >> 10}G" if bar.mib >= 1 << 10 else f"{bar.mib}M"
