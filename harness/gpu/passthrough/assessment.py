"""Decides from the host's state, the inventory and the quarantine whether GPUs may be leased."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu.passthrough import VFIO_DRIVER, VerdictKind
from harness.gpu.passthrough.device_users import (
    VfioFile,
    probe_vfio_file,
    vfio_file,
)
from harness.gpu.passthrough.discovery import read_host
from harness.shared_folder import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.gpu.passthrough import HostDevices, HostFunction, HostGpu
    from harness.gpu.passthrough.inventory import Inventory
    from harness.gpu.passthrough.records import DeviceRecords


class Assessor:
    """Reads the GPUs of the host whose files are below `root`, and judges them."""

    def __init__(self, root: Path, inventory: Inventory, records: DeviceRecords) -> None:
        self._root = root
        self._inventory = inventory
        self._records = records

    def assess(self) -> HostDevices:
        """Return the host's devices, with a verdict on each GPU; the verdicts ignore leases."""
        host = read_host(self._root)
        self._inventory.require_gpus(host)
        gpus = []
        for gpu in host.gpus:
            findings = self._inventory.findings(gpu.address)
            if self._records.folder.exists():
                findings += self._recorded_findings(gpu.address, host.functions)
            one = dataclasses.replace(gpu, model=self._inventory.model_of(gpu.address))
            for kind, reason in findings:
                one = with_finding(one, kind, reason)
            gpus.append(one)
        return dataclasses.replace(host, gpus=tuple(gpus))

    def _recorded_findings(
        self, address: str, functions: Mapping[str, HostFunction]
    ) -> list[tuple[VerdictKind, str]]:
        try:
            quarantine = self._records.quarantine(address)
            recorded = self._records.drivers(address)
            if recorded is not None:
                recorded.require_fit(functions)
        except HarnessError as error:
            return [(VerdictKind.UNKNOWN, str(error))]
        if quarantine is None:
            return []
        reason = (
            f"The GPU has been quarantined since {quarantine.since} by user {quarantine.user}: "
            f"{quarantine.reason} When the GPU is repaired, run `harness gpu host release {address}`."
        )
        return [(VerdictKind.REFUSED, reason)]

    def with_open_file(self, gpu: HostGpu) -> HostGpu:
        """Open the file of the GPU's group; return `gpu`, with a finding if the file does not open.

        Only the file of a usable GPU on vfio-pci is opened.
        """
        if gpu.group is None or gpu.function.driver != VFIO_DRIVER or not gpu.verdict.is_usable:
            return gpu
        match probe_vfio_file(self._root, gpu.group.number):
            case VfioFile.BUSY:
                reason = f"Another process has '{vfio_file(gpu.group.number)}' open."
                return with_finding(gpu, VerdictKind.BUSY, reason)
            case VfioFile.FORBIDDEN:
                reason = forbidden(gpu.group.number)
                return with_finding(gpu, VerdictKind.REFUSED, reason)
            case VfioFile.ABSENT:
                reason = f"The GPU is bound to {VFIO_DRIVER}, but '{vfio_file(gpu.group.number)}' is missing."
                return with_finding(gpu, VerdictKind.UNKNOWN, reason)
            case VfioFile.FREE:
                return gpu


def with_finding(gpu: HostGpu, kind: VerdictKind, reason: str) -> HostGpu:
    return dataclasses.replace(gpu, verdict=gpu.verdict.with_finding(kind, reason))


def forbidden(group: int) -> str:
    return (
        f"User {user_name(os.geteuid())} may not open '{vfio_file(group)}'; run as root, or let an "
        "administrator install the udev rule that docs/gpu-lab.md shows, which gives your group access."
    )
