"""The scripts that add the stand-ins to a cloud image, run by the tools of this host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.lab.prepared_images import MAKE_DRIVER, MISSING, UNPACK, stand_in_archive
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT_S = 60.0


def test_files_that_the_image_has_are_kept(tmp_path: Path) -> None:
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


def test_image_without_the_tools_gets_no_stand_in_driver(tmp_path: Path) -> None:
    result = LocalRunner().run(
        ["env", "-i", f"PATH={tmp_path}", "/bin/sh", "-c", MAKE_DRIVER], timeout_s=_SCRIPT_S
    )

    assert result.exit_code == 0
    assert result.stdout.startswith(f"{MISSING}containerd, ctr, docker-registry, dkms, gcc")
