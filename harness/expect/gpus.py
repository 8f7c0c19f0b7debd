"""The GPUs that a node has, and the module that drives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.expect.claim import claim

if TYPE_CHECKING:
    from harness.evidence import Evidence

NVIDIA_VENDOR = "10de"


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
