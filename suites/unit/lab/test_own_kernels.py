"""Kernels of users: the installation in a guest, and the files that are copied out for the boot."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, HarnessError
from harness.image.own_kernel import KernelFiles, KernelPackages
from harness.image.store import ImageStore
from harness.lab import own_kernels
from harness.lab.own_kernels import install_kernel
from harness.settings import MachineStart
from suites.unit.image.kernel_files import a_vmlinuz
from suites.unit.lab.builders import an_image
from suites.unit.lab.fake_vm import limit_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.image import Image
    from harness.image.own_kernel import OwnKernel
    from harness.lab import Lab
    from suites.unit.lab.stage import Stage

VERSION = "6.9.1-mine"
LISTED = f"""\
drwxr-xr-x root/root         0 2026-11-01 10:00 ./boot/
-rw-r--r-- root/root   7000000 2026-11-01 10:00 ./boot/vmlinuz-{VERSION}
-rw-r--r-- root/root   7000000 2026-11-01 10:00 ./boot/config-{VERSION}
"""


def a_package(path: Path, content: bytes = b"") -> Path:
    path.write_bytes(b"!<arch>\ndebian-binary" + content)
    return path


@pytest.fixture
def packages(tmp_path: Path) -> KernelPackages:
    names = ("linux-image.deb", "linux-headers.deb")
    return KernelPackages(
        packages=tuple(a_package(tmp_path / name, name.encode()) for name in names)
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KernelFiles:
    """Return kernel files that belong to an ordinary user."""
    look = tarfile.TarFile.gettarinfo

    def owned(tar: tarfile.TarFile, *args: Any, **how: Any) -> tarfile.TarInfo:
        entry = look(tar, *args, **how)
        entry.uid = entry.gid = 1000
        entry.uname = entry.gname = "me"
        return entry

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", owned)
    modules = tmp_path / "lib/modules" / VERSION
    (modules / "kernel").mkdir(parents=True)
    (modules / "kernel/own.ko").write_bytes(b"a module")
    (modules / "build").symlink_to("/home/me/linux")
    return KernelFiles(vmlinuz=a_vmlinuz(tmp_path / "bzImage", VERSION), modules=tmp_path)


class Derivation:
    """Replaces the derivation of an image: records the request, and makes the image on `disk`."""

    def __init__(self, folder: Path) -> None:
        self.disk = folder / "made/disk.qcow2"
        self.disk.parent.mkdir()
        self.parts: list[dict[str, str]] = []
        self.limit_s = 0
        self.listener: object = None
        self.parent: Image | None = None

    def ensure(
        self,
        parent: Image,
        parts: dict[str, str],
        make: Callable[[Path], None],
        *,
        deadline: Any,
        listener: object,
    ) -> object:
        self.parts.append(parts)
        self.limit_s = limit_of(deadline)
        self.listener = listener
        make(self.disk)
        self.parent = parent
        return replace(an_image(), name="derived")

    @property
    def kernels(self) -> dict[str, bytes]:
        top = self.disk.parent / "kernels"
        return {
            path.relative_to(top).as_posix(): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def derivation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Derivation:
    made = Derivation(tmp_path)
    monkeypatch.setattr(
        ImageStore, "ensure_derived", lambda _, *args, **how: made.ensure(*args, **how)
    )
    return made


@pytest.fixture
def guest(stage: Stage) -> Stage:
    """Return a stage whose guest has the files that the installation of a kernel leaves."""
    stage.agent.answers |= {
        "dpkg-deb": LISTED,
        f"/boot/vmlinuz-{VERSION}": "the kernel",
        f"/boot/initrd.img-{VERSION}": "its initrd",
    }
    return stage


def kernel_commands(stage: Stage) -> list[tuple[str, ...]]:
    """Return the commands that the guest ran, except calls of sh and systemctl."""
    return [each for each in stage.agent.commands() if each[0] not in ("sh", "systemctl")]


@pytest.mark.parametrize(("number", "top"), [(0, "./boot"), (1, "boot")])
def test_kernel_packages_are_installed_together_in_the_guest(
    lab: Lab,
    guest: Stage,
    packages: KernelPackages,
    asked: list[dict[str, Any]],
    derivation: Derivation,
    *,
    number: int,
    top: str,
) -> None:
    places = [f"{own_kernels._FOLDER}/{number}.deb" for number in range(2)]
    # The package of kernel headers contains no kernel.
    guest.agent.answers["dpkg-deb"] = ""
    guest.agent.answers[places[number]] = LISTED.replace("./boot", top)

    image, kernel = install_kernel(lab, an_image(), packages)

    assert (image.name, kernel) == ("derived", image.newest_kernel)
    assert derivation.parent == an_image()
    (boot,) = asked
    assert (boot["disk"], boot["start"]) == (derivation.disk, MachineStart.COLD)
    request = boot["request"]
    assert (request.name, request.image, request.command) == ("kernel", an_image(), None)
    assert kernel_commands(guest) == [
        *(("dpkg-deb", "--contents", place) for place in places),
        ("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", *places),
        ("test", "-e", f"/boot/initrd.img-{VERSION}"),
        ("rm", "-rf", own_kernels._FOLDER),
        ("sync",),
    ]
    written = {argv[-1]: content for argv, content in guest.agent.stdin.items()}
    assert written == {
        place: package.read_bytes()
        for place, package in zip(places, packages.packages, strict=True)
    }
    assert ("stream", "cat", "--", f"/boot/vmlinuz-{VERSION}") in guest.noted
    assert ("power off", 45) in guest.noted
    assert derivation.kernels == {
        f"{VERSION}/vmlinuz": b"the kernel",
        f"{VERSION}/initrd.img": b"its initrd",
    }


@pytest.mark.usefixtures("asked")
def test_packages_and_files_of_a_kernel_are_installed_in_separate_images(
    lab: Lab,
    guest: Stage,
    packages: KernelPackages,
    files: KernelFiles,
    derivation: Derivation,
) -> None:
    install_kernel(lab, an_image(), packages)
    (derivation.disk.parent / "kernels").rename(derivation.disk.parent / "first")
    install_kernel(lab, an_image(), files)

    assert derivation.parts == [
        {"own-kernel": packages.digest(), "kind": "KernelPackages"},
        {"own-kernel": files.digest(), "kind": "KernelFiles"},
    ]
    assert guest.agent.files == {}


@pytest.mark.usefixtures("asked", "derivation")
@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("", r"have none\."),
        (
            LISTED.replace(VERSION, "6.8.0"),
            r"have the kernels \['6\.8\.0', '6\.9\.1-mine'\]\.",
        ),
    ],
    ids=["no kernel", "two kernels"],
)
def test_kernel_packages_with_no_kernel_or_two_kernels_are_refused(
    lab: Lab,
    guest: Stage,
    packages: KernelPackages,
    second: str,
    found: str,
) -> None:
    guest.agent.answers["dpkg-deb"] = second and LISTED
    guest.agent.answers[f"{own_kernels._FOLDER}/1.deb"] = second

    with pytest.raises(
        BadInputError,
        match=r"^kernel: key 'packages': The packages \['linux-image.deb', 'linux-headers.deb'\] were "
        r"expected to have one kernel, '/boot/vmlinuz-VERSION', but " + found,
    ):
        install_kernel(lab, an_image(), packages)

    assert not [argv for argv in guest.agent.commands() if "dpkg" in argv]


@pytest.mark.usefixtures("asked")
def test_kernel_files_replace_files_of_the_same_version_in_the_image(
    lab: Lab,
    guest: Stage,
    files: KernelFiles,
    derivation: Derivation,
) -> None:
    guest.agent.refused.add("test")

    install_kernel(lab, an_image(), files)

    assert kernel_commands(guest) == [
        ("mkdir", "-p", "/lib/modules", "/boot"),
        ("depmod", VERSION),
        ("rm", "-f", f"/boot/initrd.img-{VERSION}"),
        ("test", "-e", f"/boot/initrd.img-{VERSION}"),
        ("update-initramfs", "-c", "-k", VERSION),
        ("rm", "-rf", own_kernels._FOLDER),
        ("sync",),
    ]
    unpacked = guest.agent.stdin[("tar", "-C", "/lib/modules", "-xf", "-")]
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as archive:
        (module,) = archive
        content = archive.extractfile(module)
        assert content is not None
        assert content.read() == b"a module"
    assert module.name == f"{VERSION}/kernel/own.ko"
    assert (module.uid, module.gid, module.uname, module.gname) == (0, 0, "root", "root")
    written = {argv[-1]: content for argv, content in guest.agent.stdin.items() if "put" in argv}
    assert written == {f"/boot/vmlinuz-{VERSION}": files.vmlinuz.read_bytes()}
    assert set(derivation.kernels) == {f"{VERSION}/vmlinuz", f"{VERSION}/initrd.img"}


@pytest.mark.usefixtures("asked", "derivation")
def test_initrd_of_the_user_is_installed_instead_of_a_generated_initrd(
    lab: Lab,
    guest: Stage,
    files: KernelFiles,
    tmp_path: Path,
) -> None:
    own = tmp_path / "initrd"
    own.write_bytes(b"my initrd")

    install_kernel(
        lab, an_image(), KernelFiles(vmlinuz=files.vmlinuz, modules=files.modules, initrd=own)
    )

    written = {argv[-1]: content for argv, content in guest.agent.stdin.items() if "put" in argv}
    assert written[f"/boot/initrd.img-{VERSION}"] == b"my initrd"
    assert "update-initramfs" not in [argv[0] for argv in guest.agent.commands()]
    names = [each[1] if each[0] == "run" else each[-1] for each in guest.noted if len(each) > 1]
    assert names.index("rm") < names.index(f"/boot/initrd.img-{VERSION}")


@pytest.mark.usefixtures("asked")
def test_failed_write_of_a_kernel_file_is_reported_with_the_reason(
    lab: Lab,
    guest: Stage,
    files: OwnKernel,
    derivation: Derivation,
) -> None:
    guest.agent.refused.add("tar")

    with pytest.raises(
        HarnessError,
        match=r"^A file of the kernel could not be written in machine 'node': "
        r"\['tar', '-C', '/lib/modules', '-xf', '-'\] ended with exit code 1\. it is refused\ufffd$",
    ):
        install_kernel(lab, an_image(), files)

    assert ("power off", 45) not in guest.noted
    assert derivation.kernels == {}


@pytest.mark.usefixtures("asked", "derivation")
@pytest.mark.parametrize("how", ["refused", "empty"])
def test_kernel_file_that_is_missing_after_its_installation_is_an_error(
    lab: Lab,
    guest: Stage,
    packages: KernelPackages,
    how: str,
) -> None:
    path = f"/boot/vmlinuz-{VERSION}"
    if how == "refused":
        guest.agent.refused.add(path)
    else:
        guest.agent.answers[path] = ""

    with pytest.raises(
        HarnessError,
        match=rf"^The file '{path}' was expected in machine 'node' after its kernel was installed, "
        r"but could not be read\.$",
    ):
        install_kernel(lab, an_image(), packages)
