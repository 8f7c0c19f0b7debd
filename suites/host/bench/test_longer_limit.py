"""The provisioner with a longer time limit for installing the driver, run by this host's Python."""

from __future__ import annotations

import json
from pathlib import Path

from harness.bench import time_to_gpu
from harness.payload import build_payload, write_payload
from harness.provisioner.gpu_node import METADATA_CACHE
from harness.provisioning.command import LocalRunner

_PROGRAM = Path(time_to_gpu.__file__).with_name("longer_limit.py")
_GPU_NODE = {
    "gpu_node": True,
    "config_gpu_driver_if_needed": True,
    "gpu_driver_type": "cuda-lts",
    "gpu_driver_version": "535.309.01",
    "gpu_image_sha": "1",
}


def test_only_the_install_command_gets_the_longer_time_limit(tmp_path: Path) -> None:
    files = {
        METADATA_CACHE: '{"compute": {"tagsList": [], "vmSize": "Standard_ND96isr_H100_v5"}}',
        "/etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "/config.json": json.dumps(_GPU_NODE),
    }
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    argv = [
        *("python3", "-I", "-S", str(_PROGRAM), "14400"),
        *(str(write_payload(build_payload(), tmp_path)), "plan"),
        *("--config", str(tmp_path / "config.json"), "--root", str(tmp_path)),
    ]

    plan = LocalRunner().run(argv, timeout_s=60.0).check("The plan").stdout.splitlines()

    (longer,) = [line for line in plan if "limit 14400 s" in line]
    assert "/entrypoint.sh install " in longer
