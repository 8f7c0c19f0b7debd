"""Builds evidence folders for tests."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.evidence import (
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    RECORD_PATH,
    TRACE_SUFFIX,
    Evidence,
)
from harness.gpu.trace import AccessKind, IncidentKind, TraceRecorder
from harness.gpu.trace_file import render_trace
from harness.provisioner import EXIT_CODE_PATH
from harness.provisioner.gpu_node import EVENTS_FOLDER, OUTCOME_PATH
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

KERNEL = "6.1.0-56-cloud-amd64"
OTHER_KERNEL = "6.1.0-55-cloud-amd64"
VERSION = "580.126.09"
IMAGE = "mcr.microsoft.com/aks/aks-gpu-cuda-lts:580.126.09-20260801000000"
BOOTED_AT_S = 1_700_000_000
#: The output of `containerd config dump` of containerd 1.7, without the parts that the harness ignores.
CONTAINERD_CONFIG = """\
disabled_plugins = []
imports = ["/etc/containerd/config.toml"]
version = 2

[plugins]

  [plugins."io.containerd.grpc.v1.cri"]
    enable_cdi = true

    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes]

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
            BinaryName = "/usr/bin/nvidia-container-runtime"

        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
            BinaryName = ""
"""
MODULE = f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"


@dataclass(frozen=True)
class EvidenceFolder:
    """An evidence folder to fill; every method replaces earlier content."""

    root: Path

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.root)

    def command(self, name: str, output: str, exit_code: int = 0) -> Self:
        self._write(f"commands/{name}", output)
        return self._write(f"commands/{name}.exit-code", f"{exit_code}\n")

    def file(self, path: str, text: str) -> Self:
        return self._write(f"files{path}", text)

    def without(self, name: str) -> Self:
        """Remove the file with this name from the folder."""
        (self.root / name).unlink()
        return self

    def trace(self, *entries: AccessKind | IncidentKind | str, gpu: str = "gpu0") -> Self:
        """Write a GPU's access trace: accesses of BAR 0 or configuration space, incidents, marks.

        A string is a mark.
        """
        recorder = TraceRecorder(SYSTEM_CLOCK)
        for entry in entries:
            if isinstance(entry, str):
                recorder.incident(IncidentKind.MARK, entry)
            elif isinstance(entry, IncidentKind):
                recorder.incident(entry)
            else:
                recorder.access(entry, None if entry.is_config else 0, 0, 4, 0x180000A1)
        return self._write(f"host/{gpu}{TRACE_SUFFIX}", render_trace(recorder.snapshot()))

    def outcome(self, **fields: object) -> Self:
        """Write an outcome of success with `fields` changed."""
        document = {
            "command": "boot",
            "exit_code": 0,
            "exit_name": "success",
            "error": None,
            "decision": {"action": "install-skip-build", "reason": "ok"},
            "steps": [
                {"name": "install-driver", "status": "done", "duration_s": 1.5, "detail": None},
                {"name": "restart-dcgm", "status": "failed", "duration_s": 0.1, "detail": "slow"},
            ],
        }
        return self.file(OUTCOME_PATH, json.dumps({**document, **fields}))

    def cloud_init(
        self, *errors: str, datasource: str = "DataSourceNoCloud [seed=/dev/vdb]"
    ) -> Self:
        run = {"datasource": datasource, "errors": list(errors)}
        return self.file(CLOUD_INIT_RESULT_PATH, json.dumps({"v1": run}))

    def modules(self, *names: str) -> Self:
        return self.file(
            "/proc/modules",
            "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in names),
        )

    def paths(self, *lines: str) -> Self:
        return self._write("stat.txt", "".join(f"{line}\n" for line in lines))

    def more_paths(self, *lines: str) -> Self:
        return self.paths(*(self.root / "stat.txt").read_text().splitlines(), *lines)

    def event(self, name: str, task: str) -> Self:
        return self.file(f"{EVENTS_FOLDER}/{name}.json", json.dumps({"TaskName": task}))

    def _write(self, name: str, text: str) -> Self:
        # The suites write a hundred thousand of these files; for most files, the folder exists already.
        try:
            with open(f"{self.root}/{name}", "w") as file:  # noqa: PTH123 - twice as fast
                file.write(text)
        except FileNotFoundError:
            target = self.root / name
            target.parent.mkdir(parents=True)
            target.write_text(text)
        return self


@functools.cache
def _content(make: Callable[[Path], EvidenceFolder]) -> tuple[list[str], dict[str, bytes]]:
    """Return a node's folders and files; cached, since a thousand tests share three nodes."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        make(top)
        paths = sorted(top.rglob("*"))
        folders = [str(path.relative_to(top)) for path in paths if path.is_dir()]
        files = {str(p.relative_to(top)): p.read_bytes() for p in paths if p.is_file()}
    return folders, files


def _made(make: Callable[[Path], EvidenceFolder], folder: Path) -> EvidenceFolder:
    folders, files = _content(make)
    folder.mkdir(parents=True, exist_ok=True)
    for name in folders:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{folder}/{name}")  # noqa: PTH102 - twice as fast, as below
    for name, content in files.items():
        file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.write(file, content)
        os.close(file)
    return EvidenceFolder(folder)


def a_gpu_node(folder: Path) -> EvidenceFolder:
    """Return the evidence of a prebaked GPU node without errors."""
    return _made(_gpu_node, folder)


def a_serving_node(folder: Path) -> EvidenceFolder:
    """Return the evidence of a node that serves its GPU to containers, gathered as root."""
    return _made(_serving_node, folder)


def a_stripped_node(folder: Path) -> EvidenceFolder:
    """Return the evidence of a node without GPU from which the driver was removed."""
    return _made(_stripped_node, folder)


def _gpu_node(folder: Path) -> EvidenceFolder:
    return (
        EvidenceFolder(folder)
        .outcome()
        .cloud_init()
        .file(EXIT_CODE_PATH, "0\n")
        .file(
            CLOUD_INIT_OUTPUT_PATH,
            "Cloud-init v. 22.4.2 running\n"
            "AKS_GPU_PREBAKE event=decision action=install-skip-build reason=ok\n",
        )
        .file(RECORD_PATH, f"DRIVER_VERSION={VERSION}\nKERNEL={KERNEL}\n")
        .file("/proc/stat", f"cpu 1 2 3\nbtime {BOOTED_AT_S}\n")
        .file(
            "/proc/driver/nvidia/gpus/0000:01:00.0/information",
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 22\nDevice Minor: \t 0\n",
        )
        .modules("nvidia", "virtio_blk")
        .event("1700000001000", "AKS.CSE.ensureGPUDrivers")
        .command("uname-r", f"{KERNEL}\n")
        .command("dkms-status", f"nvidia/{VERSION}, {KERNEL}, x86_64: installed\n")
        .command(
            "lspci",
            "00:00.0 Host bridge [0600]: Intel Corporation 82G33/G31 [8086:29c0]\n"
            "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] "
            "(rev a1)\n\tSubsystem: NVIDIA Corporation Device [10de:16c1]\n"
            "\tKernel driver in use: nvidia\n",
        )
        .command("container-images", f"{IMAGE}\nregistry.k8s.io/pause:3.9\n")
        .command("dmesg", "[    0.000000] Linux version 6.1.0\n")
        .command("failed-units", "")
        .command("units", "nvidia-dcgm.service loaded active running NVIDIA DCGM service\n")
        .command(
            f"modinfo-{KERNEL}",
            f"filename: {MODULE}\nversion:        {VERSION}\n"
            f"vermagic:       {KERNEL} SMP mod_unload\n",
        )
        .command(f"modinfo-{OTHER_KERNEL}", "modinfo: ERROR: Module nvidia not found.\n", 1)
        .paths(
            "c 666 0 1700000002.0000000000 /dev/nvidia0",
            "c 666 0 1700000002.0000000000 /dev/nvidiactl",
            f"f 644 4096 1699990000.5000000000 {MODULE}",
            "f 755 100 1699990000.0000000000 /usr/bin/nvidia-smi",
            "f 4755 100 1699990000.0000000000 /usr/bin/nvidia-modprobe",
            "d 755 40 1699990000.0000000000 /usr/bin/lib64",
            f"f 644 60 1699990000.0000000000 {RECORD_PATH}",
        )
    )


def a_cdi_spec(gpus: int) -> dict[str, object]:
    """Return a CDI spec of this number of GPUs, as `nvidia-ctk` writes it."""
    nodes = [{"path": f"/dev/nvidia{number}"} for number in range(gpus)]
    devices = [
        *(
            {"name": str(n), "containerEdits": {"deviceNodes": [node]}}
            for n, node in enumerate(nodes)
        ),
        {"name": "all", "containerEdits": {"deviceNodes": nodes}},
    ]
    edits = {"deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}]}
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": edits,
    }


def _serving_node(folder: Path) -> EvidenceFolder:
    spec = a_cdi_spec(1)
    return (
        _gpu_node(folder)
        .file(
            RECORD_PATH,
            f"kernel={KERNEL}\ndriver_version={VERSION}\ndriver_kind=cuda\narch=x86_64\n",
        )
        .file(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Mon Aug  3 UTC 2026\n",
        )
        .file("/run/cdi/nvidia.yaml", json.dumps(spec))
        .command("containerd-config", CONTAINERD_CONFIG)
        .command(
            "units",
            "containerd.service loaded active running containerd\n"
            "nvidia-device-plugin.service loaded active running plugin\n",
        )
        .more_paths(
            f"d 755 0 1.0 /lib/modules/{KERNEL}",
            "d 755 0 1.0 /run/systemd/system",
            "f 644 0 1.0 /opt/azure/containers/managed-gpu-experience.enabled",
        )
    )


def _stripped_node(folder: Path) -> EvidenceFolder:
    return (
        _gpu_node(folder)
        .outcome(decision={"action": "teardown", "reason": "opted_out"})
        .without(f"files{RECORD_PATH}")
        .without("files/proc/driver/nvidia/gpus/0000:01:00.0/information")
        .modules("virtio_blk")
        .command("dkms-status", "")
        .command("lspci", "00:00.0 Host bridge [0600]: Intel Corporation 82G33/G31 [8086:29c0]\n")
        .command("container-images", "")
        .command(f"modinfo-{KERNEL}", "modinfo: ERROR: Module nvidia not found.\n", 1)
        .paths()
    )
