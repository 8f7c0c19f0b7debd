"""Expectations on the GPUs of a node and on the kernel module that is bound to them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from harness.errors import BadInputError, HarnessError
from harness.evidence import DRIVER_CONTAINER
from harness.expect.failure import failure, require
from harness.gpu import GpuKind, GpuModel
from harness.gpu.catalogue import load_catalogue
from harness.provisioning.driver_messages import parse_messages
from harness.provisioning.driver_words import Severity
from harness.provisioning.unsupported_gpu import parse_refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.evidence import Evidence
    from harness.evidence.node_state import PciFunction
    from harness.evidence.paths import GatheredPaths

#: The PCI class of display controllers; a vendor's switches and sound functions have other classes.
_DISPLAY = "03"
#: An unknown line with this word may be about a GPU that the driver does not support.
_OF_A_GPU = re.compile(r"\bv?GPUs?\b", re.IGNORECASE)
_ID = re.compile(r"(?:(?:0x)?([0-9a-f]{4}):)?(?:0x)?([0-9a-f]{4})")
#: The vendor id in the configuration space of a device that does not answer.
_NO_VENDOR = "ffff"


def gpus_on_bus(evidence: Evidence, *gpus: GpuModel | str) -> None:
    """Expect exactly these GPUs on the PCI bus.

    Each GPU is given by a model or by a PCI id, with a vendor ("10de:2330") or for any vendor
    ("2330").
    """
    functions = _gpus(evidence, gpus)
    seen, wanted = _ids(functions), _wanted(gpus, functions)
    require(
        seen == wanted,
        f"The GPUs {wanted} were expected on the PCI bus, but there were {seen}.",
        evidence,
    )


def gpu_bound(evidence: Evidence, *, device: GpuModel | str) -> None:
    """Expect every GPU to be of the kind `device`, and the module `nvidia` to be bound to every GPU.

    `device` is a model or an id, as for `gpus_on_bus`.
    """
    functions = _gpus(evidence, [device])
    (wanted,) = _wanted([device], functions)
    require(
        bool(functions) and set(_ids(functions)) == {wanted},
        f"A GPU {wanted} was expected on the PCI bus, but there were {functions}.",
        evidence,
    )
    _require_answers(evidence, functions)
    for function in functions:
        require(
            function.driver_in_use == "nvidia",
            f"The module 'nvidia' was expected to be bound to {function.slot}, but "
            f"'{function.driver_in_use}' is bound.",
            evidence,
        )
    paths = evidence.paths
    missing = _missing_device_nodes(paths, len(functions))
    require(
        not missing,
        f"The device nodes {missing} were expected, but there are only {sorted(paths.seen('/dev/*'))}.",
        evidence,
    )


def gpus_driven(evidence: Evidence, *gpus: GpuModel | str) -> None:
    """Expect the module `nvidia` to be bound to exactly these GPUs, given as for `gpus_on_bus`."""
    bound = [gpu for gpu in _gpus(evidence, gpus) if gpu.driver_in_use == "nvidia"]
    _refuse_unread(evidence, bound)
    functions = [gpu for gpu in bound if gpu.is_answering]
    seen, wanted = _ids(functions), _wanted(gpus, functions)
    require(
        seen == wanted,
        f"The module 'nvidia' was expected to be bound to {wanted}, but is bound to {seen}.",
        evidence,
    )


def driver_names_gpus(evidence: Evidence, *names: str) -> None:
    """Expect the driver to report exactly these names for the GPUs to which it is bound."""
    seen = sorted(name or "(no name)" for name in evidence.driver_gpu_names.values())
    require(
        seen == sorted(names),
        f"The driver was expected to name the GPUs {sorted(names)}, but names {seen}.",
        evidence,
    )


def gpus_refused(evidence: Evidence, *gpus: GpuModel | str) -> None:
    """Expect the driver to have reported exactly these GPUs as not supported.

    Each GPU is a model, or a device id with or without a vendor. Raises HarnessError if the driver
    printed an unknown line about a GPU.
    """
    seen = evidence.refused_gpus
    unknown = [
        message.line
        for message in parse_messages(evidence.kernel_log)
        if message.words is None and _OF_A_GPU.search(message.line)
    ]
    if unknown:
        raise HarnessError(
            "It is unknown which GPUs the driver refuses, because the harness does not know a line "
            f"that the driver printed: {unknown[-1]!r}.",
            evidence=evidence.folder,
        )
    wanted = sorted(_id(gpu).rpartition(":")[2] for gpu in gpus)
    require(
        seen == wanted,
        f"The driver was expected to refuse {wanted}, but its log lines name {seen}.",
        evidence,
    )


def no_gpu(evidence: Evidence) -> None:
    """Expect no GPU on the PCI bus; the catalogue of GPU models determines which vendors are checked."""
    functions = _gpus(evidence)
    require(not functions, f"No GPU was expected, but there were {functions}.", evidence)


def has_gpus(evidence: Evidence) -> str:
    """Expect a GPU on the PCI bus, and return a sentence that lists the GPUs.

    The catalogue of GPU models determines which vendors are checked.
    """
    gpus = _gpus(evidence)
    _refuse_jetson(evidence, gpus)
    require(
        bool(gpus),
        "A GPU was expected on the PCI bus, but none of the bus's "
        f"{len(evidence.pci_functions)} functions is a GPU. Use a machine with a GPU; if the machine "
        "has a GPU, look for PCI errors in the kernel log.",
        evidence,
    )
    if not any(gpu.is_answering for gpu in gpus):
        _require_answers(evidence, gpus)
    return f"The PCI bus has {_listed(gpus)}."


def every_gpu_driven(evidence: Evidence) -> str:
    """Expect the module `nvidia` to be bound to every GPU, and each GPU to have a device node."""
    version = evidence.driver_version
    gpus = _gpus(evidence)
    _refuse_jetson(evidence, gpus)
    require(
        version is not None,
        "The NVIDIA driver was expected to be loaded, but '/proc/driver/nvidia/version' does not "
        f"exist: no module 'nvidia' is loaded{'' if gpus else ', and there is no GPU'}. Install a "
        "driver, or load it with `nvidia-modprobe`; the kernel log says why it was not loaded.",
        evidence,
    )
    require(
        bool(gpus),
        f"The NVIDIA driver {version} was expected to drive a GPU, but there is none on the PCI bus. "
        "Remove the driver, or look in the kernel log for errors of the GPU.",
        evidence,
    )
    _require_answers(evidence, gpus)
    others = [gpu for gpu in gpus if gpu.driver_in_use != "nvidia"]
    require(
        not others,
        f"The module 'nvidia' was expected to drive every GPU, but {_listed(others)} "
        f"{_bound(others)}. Unbind the other driver, and look in the kernel log for messages of the "
        "NVIDIA driver.",
        evidence,
    )
    missing = _missing_device_nodes(evidence.paths, len(gpus))
    if missing and evidence.paths.seen(f"{DRIVER_CONTAINER}/usr/bin/*"):
        # A driver container has its own device nodes: NVIDIA/gpu-operator#1741.
        missing = _missing_device_nodes(evidence.paths, len(gpus), DRIVER_CONTAINER)
    require(
        not missing,
        f"Device nodes for {len(gpus)} GPUs were expected, but {missing} are missing. Create them "
        "with `nvidia-smi`, or with `nvidia-modprobe -c255 -c0`; add an option, such as '-c1', for each "
        "further GPU.",
        evidence,
    )
    return f"The NVIDIA driver {version} drives {_listed(gpus)}."


def no_gpu_error_logged(evidence: Evidence) -> str:
    """Expect no GPU error in the kernel log of this boot.

    An error that an application caused is not a GPU error. Raises HarnessError if the driver
    printed an unknown line.
    """
    messages = parse_messages(evidence.kernel_log)
    refused = evidence.refused_gpus
    require(
        not refused,
        f"All GPUs were expected to be supported, but the driver does not support {refused}. "
        f"{' '.join(each.describe() for each in parse_refusals(evidence.kernel_log))}",
        evidence,
    )
    errors = [message for message in messages if message.condemns_node]
    if errors:
        # After an error, the driver also logs messages about the consequences. The table has no
        # names for these messages, so the last error with a name is reported.
        last = [each for each in errors if each.words is not None and each.words.name] or errors
        raise failure(
            f"No GPU error was expected in the kernel log, but there are {len(errors)} lines with "
            f"an error; the last is {last[-1].line!r}. {last[-1].describe()}",
            evidence,
        )
    unknown = [message.line for message in messages if message.words is None]
    if unknown:
        raise HarnessError(
            f"The kernel log has no known GPU error, but the harness does not know {len(unknown)} of "
            f"the driver's messages, which may report errors; the last unknown message is "
            f"{unknown[-1]!r}. Look this message up in NVIDIA's documentation.",
            evidence=evidence.folder,
        )
    caused = [
        message
        for message in messages
        if message.words is not None and message.words.severity is Severity.APPLICATION
    ]
    if caused:
        return (
            f"The kernel log has no GPU error, except {len(caused)} that applications caused; the last "
            f"is {caused[-1].line!r}."
        )
    return "The kernel log has no GPU error."


def _refuse_jetson(evidence: Evidence, gpus: list[PciFunction]) -> None:
    """Raise HarnessError for NVIDIA's Jetson, whose GPU is part of the processor and not on the PCI bus."""
    if not gpus and evidence.running_kernel.endswith("-tegra"):
        raise HarnessError(
            f"The kernel '{evidence.running_kernel}' is for NVIDIA's Jetson, whose GPU may not be on the PCI "
            "bus, so whether the node has a GPU is unknown.",
            evidence=evidence.folder,
        )


def _require_answers(evidence: Evidence, gpus: list[PciFunction]) -> None:
    """Require each GPU to answer on the PCI bus; the kernel may still show the ids of a lost GPU."""
    lost = [gpu for gpu in gpus if gpu.is_answering is False]
    require(
        not lost,
        f"Every GPU was expected to answer on the PCI bus, but the configuration space of "
        f"{_listed(lost)} reads all ones: the GPU has fallen off the bus. Reboot the node; if it happens "
        "again, have the machine repaired.",
        evidence,
    )
    _refuse_unread(evidence, gpus)


def _refuse_unread(evidence: Evidence, gpus: list[PciFunction]) -> None:
    unread = [gpu for gpu in gpus if gpu.is_answering is None]
    if unread:
        raise HarnessError(
            f"It is unknown whether {_listed(unread)} answers on the PCI bus, because the node ran no "
            "'lspci' and the GPU's configuration space was not read. Install 'lspci' on the node, or gather "
            "the evidence again.",
            evidence=evidence.folder,
        )


def _missing_device_nodes(paths: GatheredPaths, gpus: int, root: str = "") -> list[str]:
    """Return the device nodes that are needed for this number of GPUs, but are missing below `root`."""
    names = ("nvidiactl", *(f"nvidia{number}" for number in range(gpus)))
    wanted = [f"{root}/dev/{name}" for name in names]
    return [path for path in wanted if path not in paths or paths[path].kind != "c"]


def _gpus(evidence: Evidence, named: Iterable[GpuModel | str] = ()) -> list[PciFunction]:
    """Return the PCI functions whose vendor and class show that they are GPUs.

    The vendors and classes come from the models in `named`, and from the catalogue of GPU models
    unless `named` contains only models. Virtual functions are left out: on a host of virtual GPUs,
    virtual functions have the ids of the physical GPU. Raises PluginError if the catalogue of GPU
    models is needed, but an installed package has models that can't be read.
    """
    named = tuple(named)
    models = [gpu for gpu in named if isinstance(gpu, GpuModel)]
    kinds = {model.pci.kind for model in models}
    if not models or len(models) < len(named):
        kinds |= known_kinds()
    vendors = {kind.vendor for kind in kinds}
    functions = [each for each in evidence.pci_functions if not each.is_virtual]
    nameless = [function.slot for function in functions if function.vendor == _NO_VENDOR]
    if nameless:
        raise HarnessError(
            f"The ids of the PCI functions {nameless} read as all ones, so it is unknown whether these "
            "functions are GPUs. Reboot the node.",
            evidence=evidence.folder,
        )
    return [
        function
        for function in functions
        if function.vendor in vendors
        and (
            function.class_code.startswith(_DISPLAY)
            or GpuKind(vendor=function.vendor, class_code=function.class_code) in kinds
        )
    ]


@functools.cache
def known_kinds() -> frozenset[GpuKind]:
    """Return the vendor and class of each GPU model that the harness or an installed package provides."""
    return load_catalogue().kinds


def _ids(functions: Iterable[PciFunction]) -> list[str]:
    return sorted(f"{function.vendor}:{function.device}" for function in functions)


def _wanted(gpus: Iterable[GpuModel | str], seen: Sequence[PciFunction]) -> list[str]:
    """Return the ids of `gpus`; an id without a vendor gets the vendor of a PCI function with this id."""
    vendors = {function.device: function.vendor for function in seen}
    ids = map(_id, gpus)
    return sorted(f"{vendors[each]}:{each}" if each in vendors else each for each in ids)


def _id(gpu: GpuModel | str) -> str:
    """Return the id in the format of `lspci -n`; raises BadInputError for a text that is not an id."""
    if not isinstance(gpu, str):
        return str(gpu.pci)
    found = _ID.fullmatch(gpu.strip().lower())
    if found is None:
        raise BadInputError(
            f"{gpu!r} is not a PCI id of a GPU, such as '10de:2330', or '2330' for any vendor.",
            source="GPU",
        )
    return ":".join(filter(None, found.groups()))


def _listed(gpus: list[PciFunction]) -> str:
    return ", ".join(f"{gpu.vendor}:{gpu.device} at {gpu.slot}" for gpu in gpus)


def _bound(gpus: list[PciFunction]) -> str:
    bound = sorted({gpu.driver_in_use for gpu in gpus if gpu.driver_in_use is not None})
    return f"is bound to {bound}" if bound else "has no driver bound to it"
