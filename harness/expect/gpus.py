"""Expectations on the GPUs of a node and on the kernel module that is bound to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.expect.failure import require

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.evidence.node_state import PciFunction

NVIDIA_VENDOR = "10de"
#: The class of display controllers; NVIDIA's switches and sound functions have others.
_DISPLAY = "03"
#: Messages of the driver about a GPU error, and about a GPU that it could not initialise.
_ERROR = re.compile(r"NVRM: (?:Xid |.*RmInitAdapter failed|.*GPU has fallen off the bus)")


def gpus_on_bus(evidence: Evidence, *devices: str) -> None:
    """Expect exactly these NVIDIA device ids on the PCI bus."""
    seen = sorted(
        function.device for function in evidence.pci_functions if function.vendor == NVIDIA_VENDOR
    )
    require(
        seen == sorted(devices),
        f"The GPUs {sorted(devices)} were expected on the PCI bus, but there were {seen}.",
        evidence,
    )


def gpu_bound(evidence: Evidence, *, device: str) -> None:
    """Expect every NVIDIA function to be `device`, and the module `nvidia` to be bound to it."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    require(
        bool(functions) and all(found.device == device for found in functions),
        f"A GPU 10de:{device} was expected on the PCI bus, but there were {functions}.",
        evidence,
    )
    for function in functions:
        require(
            function.driver_in_use == "nvidia",
            f"The module 'nvidia' was expected to be bound to {function.slot}, but "
            f"'{function.driver_in_use}' is bound.",
            evidence,
        )
    require(
        "/dev/nvidia0" in evidence.paths and "/dev/nvidiactl" in evidence.paths,
        "'/dev/nvidia0' and '/dev/nvidiactl' were expected, but there are "
        f"{[path for path in evidence.paths if path.startswith('/dev/')]}.",
        evidence,
    )


def gpus_driven(evidence: Evidence, *devices: str) -> None:
    """Expect the module `nvidia` to be bound to GPUs of exactly these device ids."""
    seen = sorted(
        function.device
        for function in evidence.pci_functions
        if function.vendor == NVIDIA_VENDOR and function.driver_in_use == "nvidia"
    )
    require(
        seen == sorted(devices),
        f"The module 'nvidia' was expected to be bound to {sorted(devices)}, but is bound to {seen}.",
        evidence,
    )


def driver_names_gpus(evidence: Evidence, *names: str) -> None:
    """Expect exactly these names for the GPUs to which the driver is bound."""
    seen = sorted(name or "(no name)" for name in evidence.driver_gpu_names.values())
    require(
        seen == sorted(names),
        f"The driver was expected to have the GPUs {sorted(names)}, but has {seen}.",
        evidence,
    )


def gpus_refused(evidence: Evidence, *devices: str) -> None:
    """Expect the driver to have reported exactly these device ids as not supported."""
    seen = evidence.refused_gpus
    require(
        seen == sorted(devices),
        f"The driver was expected to refuse {sorted(devices)}, but its log lines name {seen}.",
        evidence,
    )


def no_gpu(evidence: Evidence) -> None:
    """Expect no NVIDIA function on the bus."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    require(not functions, f"No GPU was expected, but there were {functions}.", evidence)


def has_gpus(evidence: Evidence) -> str:
    """Expect an NVIDIA GPU of any model on the PCI bus, and return what was found."""
    gpus = _gpus(evidence)
    require(
        bool(gpus),
        "An NVIDIA GPU was expected on the PCI bus, but none of its "
        f"{len(evidence.pci_functions)} functions is one. Use a machine with a GPU; if it has one, "
        "look for PCI errors in the kernel log.",
        evidence,
    )
    return f"The PCI bus has {_listed(gpus)}."


def every_gpu_driven(evidence: Evidence) -> str:
    """Expect the module `nvidia` to be bound to every GPU, and a device node for each."""
    version = evidence.driver_version
    gpus = _gpus(evidence)
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
    others = [gpu for gpu in gpus if gpu.driver_in_use != "nvidia"]
    require(
        not others,
        f"The module 'nvidia' was expected to drive every GPU, but {_listed(others)} "
        f"{_bound(others)}. Unbind the other driver, and look in the kernel log for messages of the "
        "NVIDIA driver.",
        evidence,
    )
    wanted = ["/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(len(gpus)))]
    missing = [path for path in wanted if path not in evidence.paths]
    require(
        not missing,
        f"Device nodes for {len(gpus)} GPUs were expected, but {missing} are missing. Create them "
        "with `nvidia-modprobe -c0 -u`.",
        evidence,
    )
    return f"The NVIDIA driver {version} drives {_listed(gpus)}."


def no_gpu_error_logged(evidence: Evidence) -> str:
    """Expect no GPU error in the kernel log of this boot."""
    errors = [line for line in evidence.answer_of("dmesg").splitlines() if _ERROR.search(line)]
    require(
        not errors,
        "No GPU error was expected in the kernel log, but there are "
        f"{len(errors)} lines with one; the last is {errors[-1] if errors else ''!r}. Look up the "
        "error in NVIDIA's documentation, and reset the GPU or reboot the node.",
        evidence,
    )
    refused = evidence.refused_gpus
    require(
        not refused,
        f"All GPUs were expected to be supported, but the driver reports that {refused} are not. "
        "Install a driver that supports them.",
        evidence,
    )
    return "The kernel log has no GPU error."


def _gpus(evidence: Evidence) -> list[PciFunction]:
    return [
        function
        for function in evidence.pci_functions
        if function.vendor == NVIDIA_VENDOR and function.class_code.startswith(_DISPLAY)
    ]


def _listed(gpus: list[PciFunction]) -> str:
    return ", ".join(f"{gpu.vendor}:{gpu.device} at {gpu.slot}" for gpu in gpus)


def _bound(gpus: list[PciFunction]) -> str:
    bound = sorted({gpu.driver_in_use for gpu in gpus if gpu.driver_in_use is not None})
    return f"is bound to {bound}" if bound else "has no driver bound to it"
