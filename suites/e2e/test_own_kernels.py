"""A user's own kernels: in a Debian package, and as files that `make modules_install` writes.

The tests extract the image's second kernel, and add a mark that the image does not have.
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import KernelFiles, KernelPackages, NodeRequest
from harness.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.api import BootNode, Image, LabMachine, Node

_MARK = "extra/harness-mark.txt"

#: Repacks the installed package of a kernel, with its maintainer scripts and one more file.
_REPACK = """\
set -e
cd /  # cp looks for the parents below the working folder.
package=linux-image-$1 tree=/root/package
mkdir -p "$tree/DEBIAN" "$tree/lib/modules/$1/extra"
dpkg-query --listfiles "$package" | while read -r path; do
    [ ! -f "$path" ] || cp --parents --preserve=mode "$path" "$tree"
done
echo mark >"$tree/$2"
for script in preinst postinst prerm postrm; do
    [ ! -e "/var/lib/dpkg/info/$package.$script" ] ||
        cp "/var/lib/dpkg/info/$package.$script" "$tree/DEBIAN/$script"
done
dpkg-query --showformat='Package: ${Package}\\nVersion: ${Version}+own\\nArchitecture: ${Architecture}\\nMaintainer: ${Maintainer}\\nDescription: own\\n' \
    --show "$package" >"$tree/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$tree" /root/own.deb >&2
"""


def taken(machine: LabMachine, *argv: str) -> bytes:
    """Return the output bytes of a command in the guest."""
    output = bytearray()
    limit_s = machine.deadline(60).remaining_s()
    assert machine.agent.stream(argv, timeout_s=limit_s, on_stdout=output.extend).exit_code == 0
    return bytes(output)


@pytest.fixture
def source(boot_node: BootNode, node_image: Image) -> Node:
    """Return a node from which the tests extract a kernel."""
    return boot_node(NodeRequest(name="source", image=node_image, command=None))


def booted_with(
    boot_node: BootNode, image: Image, kernel: KernelFiles | KernelPackages, version: str
) -> None:
    """Expect that a node boots the kernel, that its modules include the mark, and that a module loads."""
    node = boot_node(NodeRequest(name="own", image=image, kernel=kernel, command=None))
    mark = f"/lib/modules/{version}/{_MARK}"

    evidence = node.evidence(files=[mark], commands={"dummy": ["modprobe", "--verbose", "dummy"]})

    expect.kernel_running(evidence, version)
    assert evidence.file(mark) == "mark\n"
    assert f"/lib/modules/{version}/" in evidence.answer_of("dummy")
    assert node.request.booted_kernel.version == version


@pytest.mark.nightly
def test_node_boots_a_kernel_that_is_given_as_files(
    boot_node: BootNode, node_image: Image, source: Node, tmp_path: Path
) -> None:
    """The initrd is generated in the guest."""
    other = node_image.other_kernel
    packed = taken(source.machine, "tar", "-C", "/", "-cf", "-", f"lib/modules/{other.version}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(tmp_path, filter="tar")
    modules = tmp_path / "lib/modules" / other.version
    (modules / _MARK).parent.mkdir(exist_ok=True)
    (modules / _MARK).write_text("mark\n")

    kernel = KernelFiles(vmlinuz=other.vmlinuz, modules=tmp_path)

    booted_with(boot_node, node_image, kernel, other.version)


@pytest.mark.nightly
def test_node_boots_a_kernel_that_is_given_as_a_package(
    boot_node: BootNode, node_image: Image, source: Node, tmp_path: Path
) -> None:
    version = node_image.other_kernel.version
    source.guest.output_of(
        *("sh", "-c", _REPACK, "repack", version, f"lib/modules/{version}/{_MARK}"),
        timeout_s=source.machine.deadline(60).remaining_s(),
    )
    package = tmp_path / "own.deb"
    package.write_bytes(taken(source.machine, "cat", "/root/own.deb"))

    booted_with(boot_node, node_image, KernelPackages(packages=(package,)), version)


@pytest.mark.nightly
def test_package_without_a_kernel_is_refused(
    boot_node: BootNode, node_image: Image, source: Node, tmp_path: Path
) -> None:
    script = (
        "mkdir -p /root/e/DEBIAN && printf 'Package: e\\nVersion: 1\\nArchitecture: all\\n"
        "Maintainer: e\\nDescription: e\\n' >/root/e/DEBIAN/control && "
        "dpkg-deb --build /root/e /root/e.deb"
    )
    source.guest.output_of("sh", "-c", script)
    package = tmp_path / "empty.deb"
    package.write_bytes(taken(source.machine, "cat", "/root/e.deb"))
    request = NodeRequest(
        name="own", image=node_image, kernel=KernelPackages(packages=(package,)), command=None
    )

    with pytest.raises(BadInputError, match=r"kernel: key 'packages': .*'empty\.deb'.* have none"):
        boot_node(request)
