"""`harness gpu host`: lists and leases this host's GPUs, and restores the GPUs' original drivers."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING

from harness.cli.columns import print_columns
from harness.cli.options import (
    add_host_gpu_options,
    add_json_option,
    positive_number,
    quantity,
    settings_of,
)
from harness.errors import RequirementError
from harness.gpu.catalogue import load_catalogue
from harness.gpu.passthrough import GpuChoice, parse_address
from harness.lab.gpu_sources import open_gpu_pool
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline
from harness.visible_text import visible

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Actions
    from harness.gpu.catalogue import Catalogue
    from harness.gpu.passthrough import HostFunction, HostGpu
    from harness.gpu.passthrough.pool import GpuPool

#: The environment variable with the addresses of the leased PCI functions, for the command of `harness
#: gpu host run`. Blanks separate GPUs; commas separate the addresses of one GPU.
ADDRESSES_VARIABLE = "HARNESS_GPU_ADDRESSES"
_WAIT_S = 600.0


def add_parser(commands: Actions) -> None:
    parser = commands.add_parser("host", help="list and lease the GPUs of this host")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    listing = actions.add_parser(
        "ls", help="list this host's GPUs, whether tests may use them, and if not, why"
    )
    add_host_gpu_options(listing)
    add_json_option(listing)
    listing.set_defaults(run=_list)

    release = actions.add_parser(
        "release",
        help="bind a quarantined GPU that answers again to its earlier drivers, and end its quarantine",
    )
    add_host_gpu_options(release)
    release.add_argument("address", metavar="ADDRESS", help="PCI address, such as 0000:65:00.0")
    release.set_defaults(run=_release)

    restore = actions.add_parser(
        "restore",
        help="after a process with leased GPUs was killed, bind these GPUs to their earlier drivers",
    )
    add_host_gpu_options(restore)
    restore.set_defaults(run=_restore)

    run = actions.add_parser(
        "run", help="lease GPUs, bind them to vfio-pci, and run a command with them"
    )
    add_host_gpu_options(run)
    which = run.add_mutually_exclusive_group()
    which.add_argument(
        "--count",
        type=positive_number,
        default=1,
        metavar="N",
        help="how many GPUs to lease, of any model (default: %(default)s)",
    )
    which.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="lease the GPU at this PCI address; may be repeated",
    )
    run.add_argument(
        "--wait",
        type=quantity,
        default=_WAIT_S,
        metavar="SECONDS",
        help="how many seconds to wait for GPUs that other processes have leased (default: %(default).0f)",
    )
    run.add_argument(
        "argv",
        nargs="+",
        metavar="COMMAND",
        help=f"after '--', the command and its arguments; {ADDRESSES_VARIABLE} contains the "
        "addresses of the leased functions",
    )
    run.set_defaults(run=_run)


def _list(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    catalogue = load_catalogue(*settings.gpu_models)
    pool = open_gpu_pool(settings, catalogue)
    gpus = pool.survey()
    leases = pool.leases()
    _print_strange_files(pool)
    if arguments.json:
        document = {
            "gpus": [_facts(gpu, catalogue) for gpu in gpus],
            "leases": [dataclasses.asdict(lease) for lease in leases],
        }
        print(json.dumps(document, indent=2))
        return 0
    if not gpus:
        print("This host has no GPU on its PCI bus.")
        return 0
    print_columns(
        ("ADDRESS", "PCI ID", "MODEL", "GROUP", "DRIVER", "VERDICT", "REASON"),
        [
            (
                gpu.address,
                gpu.function.ids,
                ",".join(_models(gpu, catalogue)) or "-",
                "-" if gpu.group is None else str(gpu.group.number),
                gpu.function.driver or "-",
                gpu.verdict.kind.word,
                gpu.verdict.reason,
            )
            for gpu in gpus
        ],
    )
    for lease in leases:
        if not lease.is_granted:
            print(f"{lease} waits.")
    return 0


def _facts(gpu: HostGpu, catalogue: Catalogue) -> dict[str, object]:
    return {
        "address": gpu.address,
        "models": _models(gpu, catalogue),
        "verdict": gpu.verdict.kind.word,
        "is_usable": gpu.verdict.is_usable,
        "reasons": list(gpu.verdict.reasons),
        "iommu_group": None if gpu.group is None else gpu.group.number,
        "functions": [_function_facts(each) for each in gpu.functions],
    }


def _function_facts(function: HostFunction) -> dict[str, object]:
    """Return the facts of a PCI function, with ids as `lspci` writes them."""
    ids = {
        "vendor": f"{function.vendor:04x}",
        "device": f"{function.device:04x}",
        "subsystem_vendor": f"{function.subsystem_vendor:04x}",
        "subsystem": f"{function.subsystem:04x}",
        "class_code": f"{function.class_code:06x}",
    }
    return {**dataclasses.asdict(function), **ids}


def _models(gpu: HostGpu, catalogue: Catalogue) -> list[str]:
    return [name for name, model in catalogue.models.items() if gpu.is_model(model)]


def _release(arguments: argparse.Namespace) -> int:
    address = parse_address(arguments.address, source="harness gpu host release", key="ADDRESS")
    open_gpu_pool(settings_of(arguments)).release(address)
    print(f"GPU {address} is released.")
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    pool = open_gpu_pool(settings_of(arguments))
    done = pool.restore_abandoned()
    for one in done:
        print(visible(one.sentence))
    _print_strange_files(pool)
    return 0 if all(one.is_restored for one in done) else 2


def _print_strange_files(pool: GpuPool) -> None:
    for sentence in pool.strange_files():
        print(sentence, file=sys.stderr)


def _run(arguments: argparse.Namespace) -> int:
    wanted = [GpuChoice(address=address) for address in arguments.address] or (
        [GpuChoice()] * arguments.count
    )
    pool = open_gpu_pool(settings_of(arguments))
    with pool.lease(
        wanted,
        holder=f"harness gpu host run {arguments.argv[0]}",
        deadline=Deadline.after(arguments.wait),
        report=lambda text: print(text, file=sys.stderr, flush=True),
    ) as gpus:
        addresses = " ".join(",".join(gpu.addresses) for gpu in gpus)
        try:
            process = spawn(
                arguments.argv,
                stdin=None,
                stdout=None,
                stderr=None,
                env={**os.environ, ADDRESSES_VARIABLE: addresses},
            )
        except OSError as error:
            raise RequirementError(
                f"The command can't be started ({error}); `setpriv` of util-linux is needed."
            ) from error
        try:
            code = process.wait()
        finally:
            end(process)
    return code if code >= 0 else 128 - code
