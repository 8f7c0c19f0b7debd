"""Scripts of images, run on this host: the script that adds stand-ins, and the choice of kernels."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import harness
from harness.lab.prepared_images import MAKE_DRIVER, MISSING, UNPACK, stand_in_archive
from harness.provisioning.command import LocalRunner
from harness.settings import SHIPPED_IMAGES

if TYPE_CHECKING:
    from harness.shell.testing import Shell

_INSTALL = Path(harness.__file__).parent / "image/build/inside/install-kernels.sh"
_SCRIPT_S = 60.0


def test_stand_ins_do_not_replace_files_that_the_image_has(tmp_path: Path) -> None:
    root, archive = tmp_path / "root", tmp_path / "stand-ins.tar"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/kubelet").write_text("the image's own\n")
    archive.write_bytes(stand_in_archive())

    LocalRunner().run(
        ["sh", "-c", UNPACK, "unpack", str(archive), str(root)], timeout_s=_SCRIPT_S
    ).check("Unpacking")

    assert (root / "usr/bin/kubelet").read_text() == "the image's own\n"
    assert (root / "usr/lib/systemd/system/kubelet.service").is_file()
    program = root / "usr/bin/nv-hostengine"
    assert "/usr/lib/gpu-node/stand-in" in program.read_text()
    assert os.access(program, os.X_OK)
    assert not archive.exists()


def test_stand_in_driver_is_not_made_in_an_image_that_lacks_the_tools_for_it(
    tmp_path: Path,
) -> None:
    result = LocalRunner().run(
        ["env", "-i", f"PATH={tmp_path}", "/bin/sh", "-c", MAKE_DRIVER], timeout_s=_SCRIPT_S
    )

    assert result.exit_code == 0
    assert result.stdout.startswith(f"{MISSING}containerd, ctr, docker-registry, dkms, gcc")


@pytest.mark.parametrize(
    ("script", "choice", "show"),
    [
        ("driver-image/actions/install.sh", r"^newest_kernel\(\) \{.*?^\}", "newest_kernel"),
        ("nvidia-free/install.sh", r"^kernel=.*?$", 'echo "$kernel"'),
    ],
)
def test_driver_is_built_for_the_newest_kernel_that_has_headers(
    tmp_path: Path, script: str, choice: str, show: str
) -> None:
    for folder in ("6.1.0-9-amd64/build", "6.1.0-10-amd64/build", "6.1.0-11-amd64/kernel"):
        (tmp_path / folder).mkdir(parents=True)
    found = re.search(choice, (SHIPPED_IMAGES / script).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    code = found[0].replace("/lib/modules", str(tmp_path))

    result = LocalRunner().run(["sh", "-euc", f"{code}\n{show}"], timeout_s=_SCRIPT_S)

    assert result.stdout == "6.1.0-10-amd64\n"


def test_newest_kernels_that_match_a_pattern_are_installed_with_their_headers(
    shell: Shell,
) -> None:
    names = ("9-cloud", "100-cloud", "10-cloud", "10-cloud", "11-cloud-unsigned", "20-rt")
    listed = "".join(f"linux-image-6.1.0-{name} - Linux 6.1\n" for name in names)
    shell.mock("apt-cache").answers(listed)
    apt = shell.mock("apt-get").answers("")

    result = shell.evaluate(f"sh {_INSTALL} 'linux-image-6.1.0-[0-9]+-cloud' 2")
    missing = shell.evaluate(f"sh {_INSTALL} 'linux-image-6.1.0-[0-9]+-rt' 2")

    assert (result.status, missing.status) == (0, 1)
    (call,) = apt.calls
    assert call.arguments[-4:] == tuple(
        f"linux-{kind}-6.1.0-{number}-cloud"
        for kind in ("image", "headers")
        for number in (10, 100)
    )
