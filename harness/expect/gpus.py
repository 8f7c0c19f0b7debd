"""The GPUs that a node has, and the module that drives them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.expect.claim import claim

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.evidence.nodestate import PciFunction

NVIDIA_VENDOR = "10de"
#: The class of display controllers; NVIDIA's switches and sound functions have others.
_DISPLAY = "03"
#: The driver's own words for a GPU in trouble, and for one that it could not take.
_ERROR = re.compile(r"NVRM: (?:Xid |.*RmInitAdapter failed|.*GPU has fallen off the bus)")


def gpus_on_bus(evidence: Evidence, *devices: str) -> None:
    """Expect exactly these NVIDIA device ids on the PCI bus."""
    seen = sorted(
        function.device for function in evidence.pci_functions if function.vendor == NVIDIA_VENDOR
    )
    claim(
        seen == sorted(devices),
        f"The GPUs {sorted(devices)} were expected on the PCI bus, but there were {seen}.",
        evidence,
    )


def gpu_bound(evidence: Evidence, *, device: str) -> None:
    """Expect every NVIDIA function to be `device`, and the module `nvidia` to be bound to it."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    claim(
        bool(functions) and all(found.device == device for found in functions),
        f"A GPU 10de:{device} was expected on the PCI bus, but there were {functions}.",
        evidence,
    )
    for function in functions:
        claim(
            function.driver_in_use == "nvidia",
            f"The module 'nvidia' was expected to be bound to {function.slot}, but "
            f"'{function.driver_in_use}' is.",
            evidence,
        )
    claim(
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
    claim(
        seen == sorted(devices),
        f"The module 'nvidia' was expected to be bound to {sorted(devices)}, but is to {seen}.",
        evidence,
    )


def driver_names_gpus(evidence: Evidence, *names: str) -> None:
    """Expect the driver to call the GPUs that it is bound to by exactly these names."""
    seen = sorted(name or "(no name)" for name in evidence.driver_gpu_names.values())
    claim(
        seen == sorted(names),
        f"The driver was expected to have the GPUs {sorted(names)}, but has {seen}.",
        evidence,
    )


def gpus_refused(evidence: Evidence, *devices: str) -> None:
    """Expect the driver to have called GPUs of exactly these device ids not supported."""
    seen = evidence.refused_gpus
    claim(
        seen == sorted(devices),
        f"The driver was expected to refuse {sorted(devices)}, but its log lines name {seen}.",
        evidence,
    )


def no_gpu(evidence: Evidence) -> None:
    """Expect no NVIDIA function on the bus."""
    functions = [found for found in evidence.pci_functions if found.vendor == NVIDIA_VENDOR]
    claim(not functions, f"No GPU was expected, but there were {functions}.", evidence)


def has_gpus(evidence: Evidence) -> str:
    """Expect a GPU of NVIDIA's on the PCI bus, of whatever model, and return what is there."""
    gpus = _gpus(evidence)
    claim(
        bool(gpus),
        "A GPU of NVIDIA's was expected on the PCI bus, but none of its "
        f"{len(evidence.pci_functions)} functions is one. Take a machine with a GPU; in one that "
        "has some, look in the kernel's log for errors of the bus.",
        evidence,
    )
    return f"The PCI bus has {_listed(gpus)}."


def every_gpu_driven(evidence: Evidence) -> str:
    """Expect the module `nvidia` to drive each GPU that there is, with its device nodes."""
    version = evidence.driver_version
    gpus = _gpus(evidence)
    claim(
        version is not None,
        "The NVIDIA driver was expected in the kernel, but '/proc/driver/nvidia/version' is not "
        f"there: no module 'nvidia' is loaded{'' if gpus else ', nor is there a GPU to drive'}. "
        "Install a driver, or load it by `nvidia-modprobe`; the kernel's log says why it did not "
        "load.",
        evidence,
    )
    claim(
        bool(gpus),
        f"The NVIDIA driver {version} was expected to drive a GPU, but none is on the PCI bus. "
        "Remove the driver, or look in the kernel's log for where the GPU went.",
        evidence,
    )
    others = [gpu for gpu in gpus if gpu.driver_in_use != "nvidia"]
    claim(
        not others,
        f"The module 'nvidia' was expected to drive every GPU, but {_listed(others)} "
        f"{_bound(others)}. Unbind what holds it, and look in the kernel's log for the words of "
        "the driver.",
        evidence,
    )
    wanted = ["/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(len(gpus)))]
    missing = [path for path in wanted if path not in evidence.paths]
    claim(
        not missing,
        f"Device nodes for {len(gpus)} GPUs were expected, but {missing} are missing. Make them by "
        "`nvidia-modprobe -c0 -u`.",
        evidence,
    )
    return f"The NVIDIA driver {version} drives {_listed(gpus)}."


def no_gpu_error_logged(evidence: Evidence) -> str:
    """Expect the kernel's log of this boot to tell of no error of a GPU."""
    errors = [line for line in evidence.answer_of("dmesg").splitlines() if _ERROR.search(line)]
    claim(
        not errors,
        "No error of a GPU was expected in the kernel's log, but there are "
        f"{len(errors)} lines with one, the last of them {errors[-1] if errors else ''!r}. Look "
        "the error up at NVIDIA's, and reset the GPU or reboot the node.",
        evidence,
    )
    refused = evidence.refused_gpus
    claim(
        not refused,
        f"No GPU was expected to be refused, but the driver called {refused} not supported. "
        "Install a driver that knows them.",
        evidence,
    )
    return "The kernel's log tells of no error of a GPU."


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
    return f"has {bound} in its place" if bound else "has no driver bound to it"
