"""Makes the NVML queries that tools make, by NVIDIA's own bindings, and prints the results as JSON.

The program runs where the NVML library is: in a guest, or in a unit test with a fake library.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from collections.abc import Callable


def answer_of(question: Callable[..., object], *arguments: object) -> object:
    """Return the result of a query, or the number of its error."""
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        return f"error {error.value}"


def ask_device(device: object) -> dict[str, object]:
    """Return what NVML says about one device."""
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    return {
        "name": pynvml.nvmlDeviceGetName(device),
        "uuid": pynvml.nvmlDeviceGetUUID(device),
        "index": pynvml.nvmlDeviceGetIndex(device),
        "minor": pynvml.nvmlDeviceGetMinorNumber(device),
        "bus_id": pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId,
        "ids": f"{pci.pciDeviceId:08x} {pci.pciSubSystemId:08x}",
        "memory_mib": answer_of(lambda: pynvml.nvmlDeviceGetMemoryInfo(device).total >> 20),
        "mig": answer_of(pynvml.nvmlDeviceGetMigMode, device),
        "mig_devices": answer_of(ask_mig_devices, device),
        "compute_capability": answer_of(pynvml.nvmlDeviceGetCudaComputeCapability, device),
        "processes": answer_of(pynvml.nvmlDeviceGetComputeRunningProcesses, device),
        "temperature": answer_of(pynvml.nvmlDeviceGetTemperature, device, 0),
        "by_uuid": answer_of(
            lambda: pynvml.nvmlDeviceGetIndex(
                pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))
            )
        ),
        "by_bus_id": answer_of(
            lambda: pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId))
        ),
    }


def ask_mig_devices(device: object) -> list[dict[str, object]]:
    """Return the MIG devices of a GPU, each with its GPU instance and compute instance."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        except pynvml.NVMLError_NotFound:
            continue
        found.append(
            {
                "uuid": pynvml.nvmlDeviceGetUUID(part),
                "gpu_instance": pynvml.nvmlDeviceGetGpuInstanceId(part),
                "compute_instance": pynvml.nvmlDeviceGetComputeInstanceId(part),
            }
        )
    return found


def ask() -> dict[str, object]:
    """Return the library's results, or the error from its initialization."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": error.value, "words": str(error)}
    try:
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
            "devices": [
                answer_of(lambda i=index: ask_device(pynvml.nvmlDeviceGetHandleByIndex(i)))
                for index in range(pynvml.nvmlDeviceGetCount())
            ],
        }
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    print(json.dumps(ask()))  # noqa: T201 - its output is its answer
