"""The folder of a saved machine, as a failed test leaves it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.lab.base_images import BaseImage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DIRECT = {"version": "6.1.0-56", "may_reboot": False}
BASE = BaseImage(name="debian-12", digest="12" * 32, folder="/there/images/debian-12-0123")


def a_bundle(
    folder: Path, *, kernel: Mapping[str, object] = DIRECT, has_seed: bool = False, schema: int = 1
) -> Path:
    folder.mkdir(parents=True)
    description = {
        "schema": schema,
        "name": "node",
        "made": "2026-11-23T06:00:00+00:00",
        "purpose": "suites/e2e/test_boot.py::test_boots",
        "qemu": "7.2.22",
        "memory": "memory.zst",
        "gpus": ["h100-sxm5-80gb"],
        "base": {"name": BASE.name, "digest": BASE.digest, "folder": BASE.folder},
        "spec": {
            "accelerator": "TCG",
            "kernel": kernel,
            "has_seed": has_seed,
            "memory_mib": 1536,
            "cpus": 1,
            "root_ports": 4,
            "root_port_window_mib": 64,
            "root_port_aperture_mib": 0,
            "has_iommu": False,
        },
    }
    (folder / "machine.json").write_text(json.dumps(description))
    (folder / "memory.zst").write_bytes(b"m" * 1000)
    return folder
