"""What is added to a cloud image, and how the kernels of the result boot."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.image import CloudImageKernel
from harness.lab.prepared_images import (
    MAKE_DRIVER,
    MISSING,
    add_driver,
    stand_in_archive,
    wait_until_booted,
    with_console,
)
from harness.lab.saved_states import booted, describe_clone
from harness.machine.channels.guest import Guest
from harness.provisioning.wait import Deadline
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.unit.lab.builders import a_platform, an_image

KERNEL = CloudImageKernel(
    version="6.8.0-31-generic",
    vmlinuz=Path("/images/vmlinuz"),
    initrd=Path("/images/initrd.img"),
    command_line=("BOOT_IMAGE=/vmlinuz-6.8.0-31-generic", "root=LABEL=cloudimg-rootfs", "ro"),
)


def test_stand_ins_are_services_and_the_tools_for_the_driver() -> None:
    with tarfile.open(fileobj=io.BytesIO(stand_in_archive())) as archive:
        names = archive.getnames()

    assert "usr/lib/systemd/system/kubelet.service" in names
    assert "run/harness-stand-ins/driver-image/build.sh" in names
    assert "run/harness-stand-ins/stand-ins/driver/payload.sh" in names
    assert "run/harness-stand-ins/oci.py" in names
    assert not [name for name in names if name.startswith("etc/cloud")]


@pytest.mark.parametrize(
    ("words", "added"),
    [(("ro",), ("console=ttyS0",)), (("console=tty1", "console=ttyS0,115200n8"), ())],
)
def test_serial_console_is_added_if_the_kernel_has_no_console(
    words: tuple[str, ...], added: tuple[str, ...]
) -> None:
    kernel = replace(KERNEL, command_line=words)

    assert with_console(kernel).command_line == (*words, *added)


def test_kernel_of_a_cloud_image_boots_with_its_own_command_line_up_to_cloud_init() -> None:
    """Nothing of the harness's own command line for built images is in it."""
    image = replace(an_image(), kernels=(KERNEL,))

    spec = describe_clone(booted(image), a_platform(), Path("/runs"), None).spec

    assert spec.kernel_command_line.startswith(" ".join(KERNEL.command_line))
    assert spec.kernel_command_line.endswith(
        "cloudimg-rootfs ro systemd.unit=basic.target systemd.wants=containerd.service"
    )


def test_network_start_affects_the_key_of_its_checkpoints_only() -> None:
    prepared = booted(replace(an_image(), kernels=(KERNEL,))).origin.parts()

    assert "systemd-networkd.service" in str(prepared["netplan"])
    assert "netplan" not in booted(an_image()).origin.parts()


def test_image_with_one_kernel_says_how_to_get_another() -> None:
    image = replace(an_image(), kernels=(KERNEL,))

    with pytest.raises(HarnessError, match="a second one is needed; install another one in it"):
        _ = image.other_kernel


def _guest(runner: ScriptedRunner) -> Guest:
    return Guest("prepare", runner)


def test_first_boot_with_errors_makes_no_node_image() -> None:
    answer = '{"v1": {"datasource": "NoCloud", "errors": ["no such module", "disk full"]}}'
    wait = "until [ -e /run/cloud-init/result.json ]; do sleep 0.1; done; cat /run/cloud-init/result.json"
    with (
        ScriptedRunner().expect(("sh", "-c", wait), stdout=answer) as runner,
        pytest.raises(
            HarnessError,
            match=r"cloud-init of the image 'noble' failed .*: no such module; disk full",
        ),
    ):
        wait_until_booted(_guest(runner), "noble", Deadline.after(60))


def test_image_with_the_tools_gets_the_stand_in_driver() -> None:
    reports: list[str] = []
    with ScriptedRunner().expect(("sh", "-c", MAKE_DRIVER), stdout="I: made it\n") as runner:
        driver = add_driver(_guest(runner), "noble", timeout_s=60, report=reports.append)

    assert driver is not None
    assert driver.repository == "mcr.microsoft.com/aks/aks-gpu-cuda-lts"
    assert reports == []


def test_image_without_them_has_no_driver_and_says_so() -> None:
    reports: list[str] = []
    said = f"{MISSING}containerd, gcc\n"
    with ScriptedRunner().expect(("sh", "-c", MAKE_DRIVER), stdout=said) as runner:
        driver = add_driver(_guest(runner), "noble", timeout_s=60, report=reports.append)

    assert driver is None
    assert reports == ["without a stand-in driver, which needs containerd, gcc"]


def test_driver_that_cannot_be_made_is_an_error() -> None:
    call = ("sh", "-c", MAKE_DRIVER)
    with (
        ScriptedRunner().expect(call, stderr="gcc: error", exit_code=1) as runner,
        pytest.raises(HarnessError, match=r"(?s)'noble'.*gcc: error"),
    ):
        add_driver(_guest(runner), "noble", timeout_s=60, report=lambda _: None)
