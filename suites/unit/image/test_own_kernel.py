"""Kernels of users: the checks of their files before any machine starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.image.own_kernel import KernelFiles, KernelPackages, read_version
from suites.unit.image.kernel_files import VERSION, a_vmlinuz

if TYPE_CHECKING:
    from pathlib import Path


def modules_of(folder: Path, version: str = VERSION) -> Path:
    """Make the folder of a kernel's modules, as `make modules_install` does."""
    modules = folder / "lib/modules" / version
    (modules / "kernel/net").mkdir(parents=True)
    (modules / "kernel/net/dummy.ko").write_text("module")
    (modules / "modules.dep").write_text("kernel/net/dummy.ko:")
    (modules / "build").symlink_to("/usr/src/linux")
    (modules / "kernel/net/source").symlink_to("dummy.ko")
    return modules


def test_modules_are_found_in_their_folder_and_below_the_install_path(tmp_path: Path) -> None:
    vmlinuz = a_vmlinuz(tmp_path / "vmlinuz")
    for folder in (modules_of(tmp_path), tmp_path):
        kernel = KernelFiles(vmlinuz=vmlinuz, modules=folder)

        assert kernel.version == VERSION
        assert [name for name, _ in kernel.module_files()] == [
            *("kernel/net/dummy.ko", "kernel/net/source", "modules.dep"),
        ]


def test_modules_of_another_kernel_are_refused(tmp_path: Path) -> None:
    modules = modules_of(tmp_path, "6.1.0-55-cloud-amd64")

    with pytest.raises(BadInputError) as caught:
        KernelFiles(vmlinuz=a_vmlinuz(tmp_path / "vmlinuz"), modules=modules)

    assert str(caught.value) == (
        f"kernel: key 'modules': '{tmp_path / 'vmlinuz'}' is the kernel '{VERSION}', so its modules "
        f"are expected in a folder of this name, but the given folder is '{modules}'."
    )


def test_folder_without_modules_is_refused(tmp_path: Path) -> None:
    (tmp_path / VERSION).mkdir()

    with pytest.raises(BadInputError, match=r"There is no folder '.*/kernel' with the modules"):
        KernelFiles(vmlinuz=a_vmlinuz(tmp_path / "vmlinuz"), modules=tmp_path / VERSION)


def test_file_that_is_not_a_bzimage_is_refused(tmp_path: Path) -> None:
    """Users may mistake an ELF file `vmlinux` for a bzImage."""
    without_version = b"MZ".ljust(0x200, b"x") + b"\xebfHdrS" + bytes(0x600)
    for content in (b"", b"\x7fELF" + bytes(0x600), without_version):
        (tmp_path / "vmlinux").write_bytes(content)

        assert read_version(tmp_path / "vmlinux") is None
        with pytest.raises(BadInputError, match=r"key 'vmlinuz': .* is not a bzImage of x86"):
            KernelFiles(vmlinuz=tmp_path / "vmlinux", modules=tmp_path)


def test_error_for_a_missing_kernel_file_has_its_key_and_path(tmp_path: Path) -> None:
    modules = modules_of(tmp_path)
    files = {"vmlinuz": a_vmlinuz(tmp_path / "a"), "initrd": a_vmlinuz(tmp_path / "b")}
    for missing in files:
        with pytest.raises(BadInputError) as caught:
            KernelFiles(modules=modules, **{**files, missing: tmp_path / "absent"})

        expected = f"kernel: key '{missing}': There is no file '{tmp_path / 'absent'}'."
        assert str(caught.value) == expected


def test_file_that_is_not_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"!<arch>\ndebian-binary   1")
    (tmp_path / "b.deb").write_bytes(b"\x1f\x8b a tar file")

    KernelPackages(packages=(tmp_path / "a.deb",))
    with pytest.raises(
        BadInputError, match=r"key 'packages\[1\]': .*b\.deb' is not a Debian pack"
    ):
        KernelPackages(packages=(tmp_path / "a.deb", tmp_path / "b.deb"))
    with pytest.raises(BadInputError, match=r"key 'packages\[0\]': There is no file"):
        KernelPackages(packages=(tmp_path / "c.deb",))
    with pytest.raises(BadInputError, match="is not a list of Debian packages"):
        KernelPackages(packages=tmp_path / "a.deb")  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="is not a list of Debian packages"):
        KernelPackages(packages=())


def test_kernel_digest_changes_with_module_names_and_contents_and_links_and_the_initrd(
    tmp_path: Path,
) -> None:
    modules = modules_of(tmp_path)
    vmlinuz = a_vmlinuz(tmp_path / "vmlinuz")
    seen = {KernelFiles(vmlinuz=vmlinuz, modules=modules).digest()}
    again = KernelFiles(vmlinuz=vmlinuz, modules=tmp_path).digest()
    assert seen == {again}

    for version in ("6.1.0-55-cloud-amd64", "6.1.0-57-cloud-amd64"):
        initrd = a_vmlinuz(tmp_path / "initrd", version)
        seen.add(KernelFiles(vmlinuz=vmlinuz, modules=modules, initrd=initrd).digest())
    (modules / "kernel/net/dummy.ko").write_text("another module")
    seen.add(KernelFiles(vmlinuz=vmlinuz, modules=modules).digest())
    (modules / "kernel/net/dummy.ko").rename(modules / "kernel/net/dumny.ko")
    seen.add(KernelFiles(vmlinuz=vmlinuz, modules=modules).digest())
    for target in ("dumny.ko", "../net/dumny.ko"):
        (modules / "kernel/net/source").unlink()
        (modules / "kernel/net/source").symlink_to(target)
        seen.add(KernelFiles(vmlinuz=vmlinuz, modules=modules).digest())

    assert len(seen) == 7


def test_digest_of_packages_changes_with_their_order_and_contents(tmp_path: Path) -> None:
    """The order matters, since packages are installed one after the other."""
    first, second = (tmp_path / name for name in ("a.deb", "b.deb"))
    seen = set()
    for content in (b"1", b"2"):
        for package in (first, second):
            package.write_bytes(b"!<arch>\ndebian-binary   " + content + package.name.encode())
        for packages in ((first, second), (second, first)):
            seen.add(KernelPackages(packages=packages).digest())

    assert len(seen) == 4
