"""Builds the fake of NVIDIA's management library, which reads the node's state from a folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from harness.gpu import GpuModel

REPOSITORY = Path(__file__).parents[3]
VERSION = "535.309.01"
LIMIT_S = 60.0

_INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t 22
GPU UUID: \t GPU-????????-????-????-????-????????????
Video BIOS: \t ??.??.??.??.??
Bus Type: \t PCI
DMA Size: \t 40 bits
DMA Mask: \t 0xffffffffff
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Excluded:\t No
"""
"""What the driver 535 reports about an emulated GPU."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled library, and the folder that the library uses as the node's root."""

    folder: Path
    root: Path

    @classmethod
    def compiled_in(cls, folder: Path) -> Library:
        library = cls(folder=folder / "lib", root=folder / "node")
        library.folder.mkdir()
        LocalRunner().run(
            [
                "sh",
                str(REPOSITORY / "images/nvidia-driver/nvml/build.sh"),
                VERSION,
                str(library.folder),
                str(library.root),
            ],
            timeout_s=LIMIT_S,
        ).check("Compiling the library")
        return library

    def empty_node(self) -> None:
        """Begin with a node on which no driver is loaded."""
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "var/lib").mkdir(parents=True)
        self.boot("first")

    def boot(self, boot_id: str) -> None:
        """Write the boot id, as after a reboot of the node."""
        self._write("proc/sys/kernel/random/boot_id", f"{boot_id}\n")

    def load_driver(self, version: str = VERSION) -> None:
        self._write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Mar 25 15:26:15 UTC "
            "2026\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n",
        )

    def plug(self, model: GpuModel, slot: int = 0, *, name: str | None = None) -> str:
        """Add a GPU to which the driver is bound, with `name` as its model; return its address."""
        address = f"0000:{slot + 1:02x}:00.0"
        self._write(
            f"proc/driver/nvidia/gpus/{address}/information",
            _INFORMATION.format(name=name or model.title, address=address, minor=slot),
        )
        pci = model.pci
        for file, value in (
            ("vendor", pci.vendor),
            ("device", pci.device),
            ("subsystem_vendor", pci.subsystem_vendor),
            ("subsystem_device", pci.subsystem),
        ):
            self._write(f"sys/bus/pci/devices/{address}/{file}", f"0x{value:04x}\n")
        self._config(address).write_bytes(pci.vendor.to_bytes(2, "little"))
        return address

    def install_probe(self, script: str) -> None:
        """Install an `nvidia-modprobe` that records its arguments and then runs `script`."""
        self._write(
            "usr/bin/nvidia-modprobe", f'#!/bin/sh\necho "$*" >>{self.root}/calls\n{script}'
        )
        (self.root / "usr/bin/nvidia-modprobe").chmod(0o755)

    def probe_calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def lose(self, address: str) -> None:
        """Let a GPU fall off the bus, so that its configuration space reads as all ones.

        Reading the driver's file about the GPU blocks for ever; a real driver blocks for minutes.
        """
        information = self.root / f"proc/driver/nvidia/gpus/{address}/information"
        information.unlink()
        os.mkfifo(information)
        self._config(address).write_bytes(b"\xff\xff")

    def ask(self) -> dict[str, object]:
        """Return what a tool reads from the library through NVIDIA's own bindings."""
        script = REPOSITORY / "suites/e2e/real_driver/ask_nvml.py"
        answer: dict[str, object] = json.loads(self.run(script.read_text()))
        return answer

    def run(self, program: str) -> str:
        """Run a Python program that loads the library by its name, and return its output."""
        result = LocalRunner().run(
            [sys.executable, "-c", program],
            timeout_s=LIMIT_S,
            env={"LD_LIBRARY_PATH": str(self.folder)},
        )
        return result.check("A program that uses the library").stdout

    def _config(self, address: str) -> Path:
        return self.root / "sys/bus/pci/devices" / address / "config"

    def _write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
