"""Boots a built image once, and installs a user's own kernel into the image."""

from __future__ import annotations

import functools
import io
import re
import tarfile
from typing import TYPE_CHECKING, BinaryIO, Protocol

from harness.errors import BadInputError, HarnessError
from harness.image.own_kernel import KernelPackages
from harness.lab.node_request import NodeRequest
from harness.machine.guest_time import deadline_of_maker
from harness.progress import ProgressEvent, Stage
from harness.settings import MachineStart

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.image import Image, Kernel
    from harness.image.own_kernel import KernelFiles, OwnKernel
    from harness.image.store import ImageStore
    from harness.lab.node import Node
    from harness.progress import ProgressListener
    from harness.provisioning.command import Argv

_INSTALL_KVM_S = 180.0
#: Seconds under KVM for dpkg with the hooks of a kernel's packages: depmod, DKMS, the initrd.
_COMMAND_KVM_S = 120.0
_COPY_KVM_S = 30.0
_FOLDER = "/var/tmp/harness-kernel"  # noqa: S108 - in the guest, which nobody else uses
_PUT = ("sh", "-c", 'mkdir -p -- "${1%/*}" && cat >"$1.part" && mv -- "$1.part" "$1"', "put")
_IN_PACKAGE = re.compile(r" (?:\./)?boot/vmlinuz-(\S+)$", re.MULTILINE)


class NodeLab(Protocol):
    """The parts of the lab that are needed to install a kernel."""

    @property
    def store(self) -> ImageStore: ...

    @property
    def listener(self) -> ProgressListener: ...

    @property
    def patience(self) -> float: ...

    def boot(
        self, request: NodeRequest, *, disk: Path, start: MachineStart
    ) -> AbstractContextManager[Node]: ...


def install_kernel(lab: NodeLab, image: Image, kernel: OwnKernel) -> tuple[Image, Kernel]:
    """Return `image` with the user's kernel installed, and the kernel itself.

    A machine boots the newest kernel of the image, and installs the user's kernel with the tools
    of the distribution. The cache of images stores the result. Raises BadInputError if the
    packages have no kernel, and HarnessError if they can't be installed.
    """
    parts = {"own-kernel": kernel.digest(), "kind": type(kernel).__name__}
    derived = lab.store.ensure_derived(
        image,
        parts,
        functools.partial(_install, lab, image, kernel),
        deadline=deadline_of_maker(_INSTALL_KVM_S * lab.patience),
        listener=lab.listener,
    )
    return derived, derived.newest_kernel


def _install(lab: NodeLab, image: Image, kernel: OwnKernel, disk: Path) -> None:
    """Install a kernel on `disk`, and copy its boot files to `kernels/VERSION` in the folder of the disk."""

    def report(line: str) -> None:
        message = f"own kernel: {line}"
        lab.listener(ProgressEvent(subject=image.name, stage=Stage.BUILD, message=message))

    request = NodeRequest(name="kernel", image=image, command=None)
    with lab.boot(request, disk=disk, start=MachineStart.COLD) as node:
        node.wait_until_provisioned()
        report("installing it")
        if isinstance(kernel, KernelPackages):
            version = _install_packages(node, kernel)
        else:
            version = _install_files(node, kernel)
        if node.guest.run("test", "-e", f"/boot/initrd.img-{version}").exit_code != 0:
            report("making its initrd")
            _run(node, "update-initramfs", "-c", "-k", version)
        folder = disk.parent / "kernels" / version
        folder.mkdir(parents=True)
        _take(node, f"/boot/vmlinuz-{version}", folder / "vmlinuz")
        _take(node, f"/boot/initrd.img-{version}", folder / "initrd.img")
        _run(node, "rm", "-rf", _FOLDER)
        _run(node, "sync")
        node.power_off()


def _install_packages(node: Node, kernel: KernelPackages) -> str:
    places = []
    for number, package in enumerate(kernel.packages):
        places.append(f"{_FOLDER}/{number}.deb")
        _put(node, package.read_bytes(), places[-1])
    listed = [_run(node, "dpkg-deb", "--contents", place) for place in places]
    versions: set[str] = {version for text in listed for version in _IN_PACKAGE.findall(text)}
    if len(versions) != 1:
        names = [package.name for package in kernel.packages]
        found = f"have the kernels {sorted(versions)}" if versions else "have none"
        raise BadInputError(
            f"The packages {names} were expected to have one kernel, '/boot/vmlinuz-VERSION', but "
            f"{found}.",
            source="kernel",
            key="packages",
        )
    _run(node, "env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", *places)
    return versions.pop()


def _install_files(node: Node, kernel: KernelFiles) -> str:
    version = kernel.version
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in kernel.module_files():
            tar.add(path, f"{version}/{name}", filter=_of_root)
    _run(node, "mkdir", "-p", "/lib/modules", "/boot")
    _stream(node, ["tar", "-C", "/lib/modules", "-xf", "-"], archive.getvalue())
    _put(node, kernel.vmlinuz.read_bytes(), f"/boot/vmlinuz-{version}")
    _run(node, "depmod", version)
    # A kernel of the image may have the same version. Without this removal, its initrd would be
    # used for the user's kernel.
    _run(node, "rm", "-f", f"/boot/initrd.img-{version}")
    if kernel.initrd is not None:
        _put(node, kernel.initrd.read_bytes(), f"/boot/initrd.img-{version}")
    return version


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _run(node: Node, *argv: str) -> str:
    limit_s = node.machine.deadline(_COMMAND_KVM_S).remaining_s()
    return node.guest.output_of(*argv, timeout_s=limit_s)


def _put(node: Node, content: bytes, path: str) -> None:
    _stream(node, [*_PUT, path], content)


def _stream(node: Node, argv: Argv, stdin: bytes) -> None:
    complaint = bytearray()
    result = node.machine.agent.stream(
        argv,
        timeout_s=node.machine.deadline(_COPY_KVM_S).remaining_s(),
        stdin=stdin,
        on_stderr=complaint.extend,
    )
    if result.exit_code != 0:
        raise HarnessError(
            f"A file of the kernel could not be written in machine '{node.machine.name}': "
            f"{list(argv)} ended with exit code {result.exit_code}. "
            f"{complaint.decode(errors='replace').strip()}"
        )


def _write(file: BinaryIO, chunk: bytes) -> None:
    file.write(chunk)


def _take(node: Node, path: str, to: Path) -> None:
    """Copy a file out of the guest."""
    with to.open("wb") as file:
        result = node.machine.agent.stream(
            ["cat", "--", path],
            timeout_s=node.machine.deadline(_COPY_KVM_S).remaining_s(),
            on_stdout=functools.partial(_write, file),
        )
    if result.exit_code != 0 or to.stat().st_size == 0:
        raise HarnessError(
            f"The file '{path}' was expected in machine '{node.machine.name}' after its kernel was "
            "installed, but could not be read."
        )
