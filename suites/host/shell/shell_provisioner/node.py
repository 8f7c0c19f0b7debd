"""A GPU node made of stateful fakes, on which a test runs the provisioning script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell import fakes
from harness.shell.testing import Answer

if TYPE_CHECKING:
    from harness.shell.testing import Evaluation, Shell

#: Relative to pytest's root directory, so that tests can run on a copy of the sample.
SCRIPT = "suites/e2e/shell_provisioner/provision.sh"
KERNEL = "6.1.0-56-cloud-amd64"
VERSION = "580.126.09"
IMAGE = f"mcr.microsoft.com/aks/aks-gpu-cuda-lts:{VERSION}-20260801000000"
RECORD = "/opt/azure/aks-gpu/dkms-marker"
EVENTS = "/var/log/gpu-node/events"

_STACK = {
    "nvidia": fakes.Module(),
    "nvidia_uvm": fakes.Module(needs=["nvidia"]),
    "nvidia_modeset": fakes.Module(needs=["nvidia"]),
    "nvidia_drm": fakes.Module(needs=["nvidia_modeset"]),
}


class Node:
    """A node: its services, packages, images, modules and tags. By default it has no driver."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        shell.source(SCRIPT)
        self.systemd = fakes.Systemd(
            {
                "containerd": fakes.Unit(is_active=True, is_enabled=True),
                "nvidia-device-plugin": fakes.Unit(),
                "nvidia-dcgm": fakes.Unit(),
                "nvidia-dcgm-exporter": fakes.Unit(),
                "kubelet": fakes.Unit(),
            }
        ).install(shell)
        self.packages = fakes.Packages(
            installed=[fakes.Package(name="make", version="4.3-4.1")],
            repository=[
                fakes.Package(name="gcc", version="4:12.2.0-3", depends=["cpp"]),
                fakes.Package(name="cpp", version="4:12.2.0-3"),
                fakes.Package(name="libc6-dev", version="2.36-9+deb12u13"),
            ],
            has_lists=False,
        ).install(shell)
        self.containerd = fakes.Containerd(registry=[IMAGE]).install(shell)
        self.containerd.on_run(IMAGE, self.run_installer)
        self.metadata = fakes.InstanceMetadata.with_tags(EnableManagedGPUExperience="true")
        self.metadata.install(shell)
        self.modules = fakes.KernelModules(kernel=KERNEL).install(shell)
        self.dkms = self._dkms([fakes.Source(name="nvidia", version=VERSION)])
        shell.mock("lspci", optional=True).answers("01:00.0 0302: 10de:2330 (rev a1)\n")
        for command in ("ldconfig", "nvidia-modprobe"):
            shell.mock(command, optional=True)
        self.smi = shell.mock("nvidia-smi", optional=True)
        uname = shell.mock("uname", optional=True)
        uname.when("-r").answers(f"{KERNEL}\n")
        uname.when("-m").answers("x86_64\n")
        self.installer_failures = 0.0

    def _dkms(self, sources: list[fakes.Source]) -> fakes.Dkms:
        return fakes.Dkms(sources, kernels=[KERNEL], modules=self.modules).install(self.shell)

    def run_installer(self, run: fakes.ContainerRun) -> Answer:
        """Install the driver's files on the node, as the driver's container image does."""
        assert run.arguments[-1] == "copy"
        if self.installer_failures > 0:
            self.installer_failures -= 1
            return Answer(exit_code=1)
        self.shell.write("/opt/gpu/module/dkms.conf", 'BUILT_MODULE_NAME[0]="nvidia"\n')
        for program in ("nvidia-modprobe", "nvidia-smi"):
            self.shell.write(f"/opt/gpu/bin/{program}", "#!/bin/sh\n", mode=0o755)
        self.shell.write("/opt/gpu/lib/libcuda.so.1", "")
        return Answer()

    def bake(self, *, kind: str = "cuda", version: str = VERSION, kernel: str = KERNEL) -> None:
        """Bake a driver into the node's image, for a kernel, and load its modules."""
        self.modules = fakes.KernelModules(_STACK, kernel=KERNEL, loaded=_STACK)
        self.modules.install(self.shell)
        baked = fakes.Source(name="nvidia", version=version, installed_for=[kernel])
        wanted = fakes.Source(name="nvidia", version=VERSION)
        self.dkms = self._dkms([wanted, baked])
        self.write_record(kernel=kernel, driver_version=version, driver_kind=kind, arch="x86_64")

    def write_record(self, **fields: str) -> None:
        self.shell.write(RECORD, "".join(f"{name}={value}\n" for name, value in fields.items()))

    def has(self, path: str) -> bool:
        """Return whether the code under test sees a file at this path."""
        return self.shell.path(path).exists()

    def call(self, function: str, *arguments: str, **env: str) -> Evaluation:
        return self.shell.call(function, *arguments, errexit=False, **env)
