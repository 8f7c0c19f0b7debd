"""The files that are added to a cloud image, and how the kernels of the new image boot."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.lab.prepared_images import stand_in_archive, with_console
from harness.lab.saved_states import booted, describe_clone
from suites.unit.lab.builders import a_cloud_kernel, a_platform, a_prepared_image, an_image


def test_stand_in_archive_contains_units_and_tools_that_build_the_driver() -> None:
    with tarfile.open(fileobj=io.BytesIO(stand_in_archive())) as archive:
        names = archive.getnames()

    assert "usr/lib/systemd/system/kubelet.service" in names
    assert "run/harness-stand-ins/driver-image/build.sh" in names
    assert "run/harness-stand-ins/stand-ins/driver/payload.sh" in names
    assert "run/harness-stand-ins/oci.py" in names
    assert not [name for name in names if name.startswith("etc/cloud")]


def test_serial_console_is_added_if_the_kernel_has_no_console() -> None:
    rows: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("ro",), ("console=ttyS0",)),
        (("console=tty1", "console=ttyS0,115200n8"), ()),
    ]
    for words, added in rows:
        kernel = replace(a_cloud_kernel(), command_line=words)

        assert with_console(kernel).command_line == (*words, *added), words


def test_cloud_image_boots_to_basic_target_with_its_own_kernel_command_line() -> None:
    """The command line contains no arguments that the harness uses for built images."""
    image = a_prepared_image()

    spec = describe_clone(booted(image), a_platform(), Path("/runs"), None).spec

    assert spec.kernel_command_line.startswith("root=LABEL=cloudimg-rootfs ro")
    assert spec.kernel_command_line.endswith(
        "cloudimg-rootfs ro systemd.unit=basic.target systemd.wants=containerd.service"
    )


def test_only_checkpoint_keys_of_cloud_images_include_the_netplan_settings() -> None:
    prepared = booted(a_prepared_image()).origin.parts()

    assert "systemd-networkd.service" in str(prepared["netplan"])
    assert "netplan" not in booted(an_image()).origin.parts()


def test_error_for_an_image_with_one_kernel_says_how_to_get_another_kernel() -> None:
    image = a_prepared_image()

    with pytest.raises(
        HarnessError, match="a second kernel is needed; install another kernel in the image"
    ):
        _ = image.other_kernel
