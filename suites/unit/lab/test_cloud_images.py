"""How a cloud image boots, and which seed it gets for its first boot."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image import CloudImage, FirmwareType
from harness.lab.cloud_images import (
    CloudImageBoot,
    agent_commands,
    cloud_image_booted,
    cloud_image_seed,
    render_clean,
)
from harness.lab.node_request import NodeRequest, render_node_seed
from harness.lab.saved_states import SavedState, describe_clone, key_parts
from harness.machine.channels.ssh import SshIdentity
from harness.machine.description.spec import DirectKernel, Firmware, MachineSpec
from harness.machine.uefi_firmware import UefiFirmware
from harness.settings import SHIPPED_IMAGES
from suites.unit.lab.builders import (
    a_cloud_image,
    a_cloud_kernel,
    a_platform,
    a_provisioner,
    an_image,
)
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.stage import RESULT, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

TREE = SHIPPED_IMAGES / "debian-12/root"


def test_commands_of_the_seed_write_the_agents_files_and_start_the_agent_at_each_boot() -> None:
    """Systemd warns of a unit file that is executable."""
    commands = agent_commands()
    for path, mode in (
        ("/usr/lib/harness/agent-loader", "0755"),
        ("/etc/systemd/system/harness-agent.service", "0644"),
    ):
        (put,) = [argv for argv in commands if path in argv]
        assert put[-1] == mode
        assert base64.b64decode(put[-2]) == (TREE / path[1:]).read_bytes()
    assert (
        "ln",
        "-sf",
        "../harness-agent.service",
        "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants/harness-agent.service",
    ) in commands
    assert commands[-1] == ("systemctl", "start", "--no-block", "harness-agent.service")


KERNEL = a_cloud_kernel()


def a_saved_state(image: CloudImage | None = None, **boot: Any) -> SavedState:
    return cloud_image_booted(image or a_cloud_image(), boot=CloudImageBoot(**boot))


def a_spec(saved_state: SavedState, folder: Path = Path("/runs")) -> MachineSpec:
    return describe_clone(saved_state, a_platform(), folder, None).spec


def parts_of(saved_state: SavedState, folder: Path = Path()) -> Mapping[str, object]:
    return key_parts(saved_state, a_spec(saved_state, folder), StuckDriver())


@pytest.fixture
def ovmf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "OVMF"
    folder.mkdir()
    (folder / "OVMF_CODE_4M.fd").write_text("code")
    (folder / "OVMF_VARS_4M.fd").write_text("variables")
    firmware = UefiFirmware(code=folder / "OVMF_CODE_4M.fd", variables=folder / "OVMF_VARS_4M.fd")
    monkeypatch.setattr("harness.machine.uefi_firmware.find_uefi_firmware", lambda: firmware)
    return folder


def test_kernel_arguments_are_refused_if_no_kernel_is_named() -> None:
    with pytest.raises(BadInputError) as caught:
        CloudImageBoot(append=("quiet",))

    assert str(caught.value).endswith("so that QEMU loads the kernel.")


def test_overlay_is_never_smaller_than_its_image() -> None:
    gib = {(10 << 30) - 1: 10, 10 << 30: None, 30 << 30: None}

    assert {
        size: CloudImageBoot(disk_gib=10).size_gib(a_cloud_image(virtual_bytes=size))
        for size in gib
    } == gib


def test_image_is_booted_by_its_own_firmware_unless_a_test_requests_another_firmware() -> None:
    image = a_cloud_image(firmware=FirmwareType.UEFI)

    assert CloudImageBoot().of(image).firmware is FirmwareType.UEFI
    assert CloudImageBoot(firmware=FirmwareType.BIOS).of(image).firmware is FirmwareType.BIOS
    assert CloudImageBoot().of(a_cloud_image()).firmware is FirmwareType.BIOS


def test_machine_with_uefi_has_its_own_copy_of_the_uefi_variables(
    tmp_path: Path, ovmf: Path
) -> None:
    saved_state = a_saved_state(firmware=FirmwareType.UEFI)
    kernel = a_spec(saved_state, tmp_path).kernel

    saved_state.origin.prepare(tmp_path)

    assert isinstance(kernel, Firmware)
    assert kernel.flash is not None
    assert kernel.flash.code == ovmf / "OVMF_CODE_4M.fd"
    assert kernel.flash.variables == tmp_path / "uefi-variables.fd"
    assert (tmp_path / "uefi-variables.fd").read_text() == "variables"


def test_checkpoint_of_a_uefi_machine_is_refused_on_a_host_without_uefi_firmware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.machine.uefi_firmware.descriptor_folders", lambda: [tmp_path])

    with pytest.raises(RequirementError, match="Booting by UEFI needs a firmware descriptor"):
        a_saved_state(firmware=FirmwareType.UEFI).origin.parts()


@pytest.mark.usefixtures("ovmf")
def test_key_of_a_cloud_image_checkpoint_changes_with_the_image_and_each_boot_option() -> None:
    others = [
        a_saved_state(a_cloud_image(digest="sha256:5678")),
        a_saved_state(a_cloud_image(disk=Path("/moved/disk.qcow2"))),
        a_saved_state(firmware=FirmwareType.UEFI),
        a_saved_state(kernel=KERNEL),
        a_saved_state(disk_gib=20),
        a_saved_state(memory_mib=2048),
    ]
    here = parts_of(a_saved_state())

    assert [other for other in others if parts_of(other) == here] == []
    newer = a_saved_state(kernel=replace(KERNEL, version="6.99"))
    assert parts_of(newer) != parts_of(a_saved_state(kernel=KERNEL))


@pytest.mark.usefixtures("ovmf")
def test_key_of_a_checkpoint_does_not_depend_on_the_folder_of_its_machine() -> None:
    saved_state = a_saved_state(firmware=FirmwareType.UEFI)

    here, there = (parts_of(saved_state, Path(each)) for each in ("/runs", "/moved"))

    assert here == there
    assert "/runs" not in str(here)


def test_key_of_a_checkpoint_changes_if_ovmf_is_replaced(ovmf: Path) -> None:
    before = a_saved_state(firmware=FirmwareType.UEFI).origin.parts()

    (ovmf / "OVMF_CODE_4M.fd").write_text("newer code")

    assert a_saved_state(firmware=FirmwareType.UEFI).origin.parts() != before


def test_cloud_image_node_has_the_driver_of_its_image_and_cannot_choose_a_kernel() -> None:
    request = NodeRequest(name="node", image=a_cloud_image())

    config = request.provisioner_files(a_provisioner())[1]
    assert json.loads(config.content)["gpu_driver_version"] == "580.1"
    with pytest.raises(
        HarnessError, match="boot loader of the cloud image 'noble' selects the kernel"
    ):
        _ = request.booted_kernel
    with pytest.raises(BadInputError, match="boots the kernel that its boot loader chooses"):
        replace(request, kernel=an_image().newest_kernel)


def test_seed_of_a_cloud_image_node_has_agent_commands_and_the_provisioner_and_its_configuration(
    tmp_path: Path,
) -> None:
    for name in ("user.pub", "host", "host.pub"):
        (tmp_path / name).touch()

    seed = render_node_seed(
        NodeRequest(name="node", image=a_cloud_image()),
        instance_id="node-1",
        provisioner=a_provisioner(),
        access=SshIdentity(folder=tmp_path).access,
        early=agent_commands(),
    )

    user_data = yaml.safe_load(seed.user_data)
    assert user_data["bootcmd"] == [list(argv) for argv in agent_commands()]
    assert "boot" in user_data["runcmd"][-1]
    assert "/etc/gpu-node/config.json" in [file["path"] for file in user_data["write_files"]]


def test_wait_for_a_cloud_image_ends_when_its_cloud_init_has_finished(
    stage: Stage,
) -> None:
    stage.agent.answers["sh"] = RESULT
    with stage.machine() as machine:
        a_saved_state().origin.wait_until_booted(machine)

    (argv,) = stage.agent.commands()
    assert "/run/cloud-init/result.json" in argv[-1]
    assert stage.agent.limits_s[argv] == 270


def test_extracted_kernel_is_booted_with_its_own_initrd_and_command_line(tmp_path: Path) -> None:
    boot = CloudImageBoot(kernel=KERNEL, append=("cc:{}",), firmware=FirmwareType.UEFI)

    # QEMU loads the kernel itself, so the machine needs no firmware.
    assert not boot.needs_variables
    assert boot.to_kernel(tmp_path) == DirectKernel(
        version=KERNEL.version,
        vmlinuz=KERNEL.vmlinuz,
        initrd=KERNEL.initrd,
        append=(*KERNEL.command_line, "cc:{}"),
        is_verbatim=True,
    )


def test_seed_of_a_cloud_image_has_the_agent_and_the_hostname_and_the_ssh_key_of_the_lab(
    tmp_path: Path,
) -> None:
    for name in ("user.pub", "host", "host.pub"):
        (tmp_path / name).write_text(f"ssh-ed25519 {name}\n")
    access = SshIdentity(folder=tmp_path).access

    seed = cloud_image_seed("mine", instance_id="mine-1", access=access)

    user_data = yaml.safe_load(seed.user_data)
    assert user_data["bootcmd"] == [list(argv) for argv in agent_commands()]
    assert yaml.safe_load(seed.meta_data)["instance-id"] == "mine-1"
    assert user_data["hostname"] == "mine"
    assert "user.pub" in str(user_data)
    without = cloud_image_seed("mine", instance_id="mine-1").user_data
    assert "user.pub" not in without
    assert "write_files" not in without


def test_clean_script_quotes_each_path() -> None:
    lines = render_clean(
        ["/etc/my file", "/etc/b"], ["/opt/it's"], agent_files=["/usr/lib/agent"]
    ).splitlines()

    assert lines[0] == "set -e"
    assert "rm -f /etc/ssh/ssh_host_* '/etc/my file' /etc/b /usr/lib/agent" in lines
    assert "rm -rf '/opt/it'\"'\"'s' /root/.ssh/authorized_keys" in lines
