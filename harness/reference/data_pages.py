"""Renders reference pages about data: images, GPU models, files that provisioning reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.gpu.catalogue import ModelFile, NodeFile
from harness.gpu.catalogue import load_catalogue as load_models
from harness.gpu.transport import Transport, choose_transport, parse_qemu_version
from harness.image.catalogue import Recipe, RecipeFile
from harness.image.catalogue import load_catalogue as load_images
from harness.image.cloud.source import CloudImageFile, CloudImageRecipe, LocalImageFile
from harness.limits import all_limits
from harness.provisioner.yaml_file import ProvisionerFile
from harness.provisioning.__main__ import COMMANDS
from harness.provisioning.__main__ import _parser as build_provisioning_parser
from harness.provisioning.configuration import Configuration
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.outcome import Outcome
from harness.reference.markdown import code, page, prose, sentence, table
from harness.reference.option_pages import arguments, children
from harness.reference.shapes import data_file_keys, field_rows, member_docstrings

if TYPE_CHECKING:
    from harness.image.catalogue import Source

_QEMU_VERSIONS = ("6.2.0", "7.2.0", "8.2.0", "9.0.0", "10.0.0", "10.1.1", "11.1.0")


def image_page() -> str:
    entries = load_images().entries.values()
    keys = ("Key", "Default", "Meaning")
    return page(
        "Images",
        "How to use and add images: [Change or add an image](../images.md).\n",
        "## The catalogue\n",
        table(
            ("Image", "Description", "Verified by"),
            ((code(one.name), one.file.description, _verification(one)) for one in entries),
        ),
        "## Keys of a recipe (`kind: build`)\n",
        table(keys, data_file_keys(RecipeFile)),
        "## Keys of a cloud image (`kind: url`)\n",
        table(keys, data_file_keys(CloudImageFile)),
        "## Keys of an image file (`kind: file`)\n",
        table(keys, data_file_keys(LocalImageFile)),
    )


def _verification(entry: Source) -> str:
    if isinstance(entry, Recipe):
        return "built here, from signed packages"
    if not isinstance(entry, CloudImageRecipe):
        return "nobody: a local file"
    signature = entry.file.signature
    if signature is None:
        return "https"
    return f"signature by `{signature.fingerprint}`"


def provisioner_page() -> str:
    return page(
        "Provisioners",
        "How to declare a provisioner: [Test your own provisioner](../provisioners.md).\n",
        "## Keys of a provisioner's file\n",
        table(("Key", "Default", "Meaning"), data_file_keys(ProvisionerFile)),
    )


def gpu_page() -> str:
    catalogue = load_models()
    keys = ("Key", "Default", "Meaning")
    return page(
        "GPUs",
        "How to use and add GPUs: [Change or add a GPU](../gpus.md).\n",
        "## Models\n",
        table(
            ("Model", "Title", "PCI id"),
            (
                (code(name), model.title, code(str(model.pci)))
                for name, model in catalogue.models.items()
            ),
        ),
        "## GPU nodes\n",
        table(
            ("GPU node", "GPUs", "VM size"),
            (
                (code(name), f"{node.count} x {code(node.model.name)}", code(node.vm_size))
                for name, node in catalogue.nodes.items()
            ),
        ),
        "## Keys of a model's file\n",
        table(keys, data_file_keys(ModelFile)),
        "## Keys of a GPU node's file\n",
        table(keys, data_file_keys(NodeFile)),
        "## QEMU releases\n",
        "The device by which a QEMU release connects to an emulated GPU, if QEMU has the device:\n",
        table(
            ("QEMU", "under TCG", "under KVM"),
            (
                (version, _transport(version, "tcg"), _transport(version, "kvm"))
                for version in _QEMU_VERSIONS
            ),
        ),
    )


def _transport(version: str, accelerator: str) -> str:
    try:
        transport = choose_transport(
            device_help="".join(f'name "{one.value}", bus PCI\n' for one in Transport),
            version=parse_qemu_version(f"version {version}"),
            accelerator="kvm" if accelerator == "kvm" else "tcg",
        )
    except RequirementError:
        return "none"
    return code(transport.value)


def provisioning_page() -> str:
    words = member_docstrings(ExitCode)
    return page(
        "Provisioning on the node",
        "How provisioning works: [Use provisioning](../provisioning.md).\n",
        "## Commands\n",
        table(("Command", "Meaning"), ((code(n), sentence(w)) for n, (w, _) in COMMANDS.items())),
        "Each command has these options:\n",
        table(
            ("Option", "Default", "Meaning"),
            arguments(next(children(build_provisioning_parser()))[1], {}),
        ),
        "## Configuration keys\n",
        table(("Key", "Default", "Meaning"), field_rows(Configuration)),
        "## Exit codes\n",
        table(
            ("Exit code", "Name", "Meaning"),
            (
                (str(each.value), code(each.name), prose(words.get(each.name, "Success.")))
                for each in ExitCode
            ),
        ),
        "## Keys of the outcome\n",
        table(
            ("Key", "Meaning"),
            (
                (code("schema"), "1"),
                *((name, meaning) for name, _, meaning in field_rows(Outcome)),
                (code("exit_name"), "The name of the exit code."),
            ),
        ),
    )


def limit_page() -> str:
    return page(
        "Limits",
        "These limits apply to the data and work that a guest, a file, a server or shell code may\n"
        "cause in the harness. An error about a limit names the limit and the source. To raise a limit\n"
        "for one run, set its environment variable. What the harness trusts, and what not:\n"
        "[Trust](../trust.md).\n",
        table(
            ("Limit", "Default", "Variable", "What is limited"),
            (
                (
                    code(limit.name),
                    f"{limit.default} {limit.unit.value}",
                    code(limit.variable),
                    sentence(limit.what),
                )
                for limit in all_limits()
            ),
        ),
    )
