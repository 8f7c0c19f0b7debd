"""How a stock image is booted, and what it is given at its first boot."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image import DriverImage, StockImage, StockKernel
from harness.lab.layers import Layer, Shape, key_parts
from harness.lab.machine import SEED, LabMachine
from harness.lab.node import Node, NodeRequest
from harness.lab.stock import StockBoot, StockOrigin, agent_commands, stock_booted, stock_seed
from harness.machine.argv import Channels, render_argv
from harness.machine.spec import Accelerator, Firmware, MachineSpec
from harness.machine.ssh import SshIdentity
from harness.payload import Payload
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.test_node import an_equipment, an_image

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGES = Path(__file__).parents[3] / "images"
TREE = IMAGES / "debian-12/root"


def test_agent_comes_before_cloud_init_writes_files() -> None:
    seed = stock_seed("stock", instance_id="stock-1", images=IMAGES)

    user_data = yaml.safe_load(seed.user_data)
    assert user_data["bootcmd"] == [list(argv) for argv in agent_commands(IMAGES)]
    assert "write_files" not in user_data
    assert yaml.safe_load(seed.meta_data)["instance-id"] == "stock-1"


def test_agents_files_arrive_as_they_are() -> None:
    loader = "/usr/lib/harness/agent-loader"

    (put,) = [argv for argv in agent_commands(IMAGES) if loader in argv]

    assert put[-1] == "0755"
    assert base64.b64decode(put[-2]) == (TREE / loader[1:]).read_bytes()


def test_agent_is_started_at_later_boots_too() -> None:
    commands = agent_commands(IMAGES)

    assert (
        "ln",
        "-sf",
        "../harness-agent.service",
        "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants/harness-agent.service",
    ) in commands
    assert commands[-1] == ("systemctl", "start", "--no-block", "harness-agent.service")


def test_catalogue_without_the_loader_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="agent's loader cannot be read"):
        agent_commands(tmp_path)


KERNEL = StockKernel(
    version="6.8.0-31-generic",
    vmlinuz=Path("/derived/vmlinuz"),
    initrd=Path("/derived/initrd.img"),
    command_line=("BOOT_IMAGE=/vmlinuz-6.8.0-31-generic", "root=LABEL=cloudimg-rootfs", "ro"),
)


def a_stock_image(**changes: Any) -> StockImage:
    image = StockImage(
        name="noble",
        digest="sha256:1234",
        disk=Path("/stock/disk.qcow2"),
        virtual_bytes=3 << 30,
        driver=DriverImage(repository="mcr.microsoft.com/gpu", version="580.1", sha="2026"),
    )
    return replace(image, **changes)


def a_layer(image: StockImage | None = None, **boot: Any) -> Layer:
    return stock_booted(image or a_stock_image(), images=IMAGES, boot=StockBoot(**boot))


def a_spec(layer: Layer, folder: Path = Path("/runs")) -> MachineSpec:
    return layer.spec(
        "noble", accelerator=Accelerator.TCG, qemu="qemu", disk=folder / "disk", folder=folder
    )


def parts_of(layer: Layer, folder: Path = Path()) -> Mapping[str, object]:
    return key_parts(layer, a_spec(layer, folder), StuckDriver())


@pytest.fixture
def ovmf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "OVMF"
    folder.mkdir()
    (folder / "OVMF_CODE_4M.fd").write_text("code")
    (folder / "OVMF_VARS_4M.fd").write_text("variables")
    monkeypatch.setattr("harness.lab.stock._OVMF", folder)
    return folder


@pytest.mark.parametrize(
    ("boot", "refusal"),
    [
        ({"firmware": "efi"}, "key 'firmware': 'efi' is no firmware; give 'bios' or 'uefi'."),
        ({"append": ("quiet",)}, "name a 'kernel' of `lab.stock_kernels` too."),
    ],
    ids=["firmware", "append"],
)
def test_boot_that_cannot_be_is_refused(boot: dict[str, Any], refusal: str) -> None:
    with pytest.raises(BadInputError) as caught:
        StockBoot(**boot)

    assert str(caught.value).endswith(refusal)


def test_kernel_taken_out_is_told_what_the_boot_loader_tells_it_and_nothing_else() -> None:
    spec = a_spec(a_layer(kernel=KERNEL, append=("cc:{}",)))

    argv = render_argv(
        spec, Channels(qmp_fd=3, serial_fd=4, agent_fd=5), serial_log=Path("serial.log")
    )

    assert argv[argv.index("-append") + 1] == " ".join((*KERNEL.command_line, "cc:{}"))


@pytest.mark.parametrize(
    ("virtual_bytes", "size_gib"), [((10 << 30) - 1, 10), (10 << 30, None), (30 << 30, None)]
)
def test_image_that_is_larger_than_its_overlay_would_be_is_not_cut_off(
    virtual_bytes: int, size_gib: int | None
) -> None:
    image = a_stock_image(virtual_bytes=virtual_bytes)

    assert StockBoot(disk_gib=10).size_gib(image) == size_gib


def test_image_is_booted_by_the_firmware_that_it_asks_for_unless_a_test_names_one() -> None:
    image = a_stock_image(firmware="uefi")

    assert StockBoot().of(image).firmware == "uefi"
    assert StockBoot(firmware="bios").of(image).firmware == "bios"
    assert StockBoot().of(a_stock_image()).firmware == "bios"


def test_each_machine_by_uefi_has_variables_of_its_own(tmp_path: Path, ovmf: Path) -> None:
    layer = a_layer(firmware="uefi")
    spec = a_spec(layer, tmp_path)

    prepared = layer.origin.prepare(spec, tmp_path, is_first=False)

    assert isinstance(prepared.kernel, Firmware)
    assert prepared.kernel.flash is not None
    assert prepared.kernel.flash.code == ovmf / "OVMF_CODE_4M.fd"
    assert prepared.kernel.flash.variables == tmp_path / "ovmf-variables.fd"
    assert (tmp_path / "ovmf-variables.fd").read_text() == "variables"
    assert prepared.seed is None


def test_first_machine_of_a_layer_has_a_seed_without_keys(tmp_path: Path) -> None:
    layer = a_layer()

    prepared = layer.origin.prepare(a_spec(layer), tmp_path, is_first=True)

    assert prepared.seed == tmp_path / SEED
    assert b"ssh_authorized_keys" not in (tmp_path / SEED).read_bytes()


def test_host_without_ovmf_makes_no_checkpoint_by_uefi(
    ovmf: Path,
) -> None:
    (ovmf / "OVMF_VARS_4M.fd").unlink()

    with pytest.raises(RequirementError, match="OVMF_VARS_4M"):
        a_layer(firmware="uefi").origin.parts()


@pytest.mark.usefixtures("ovmf")
@pytest.mark.parametrize(
    "other",
    [
        a_layer(a_stock_image(digest="sha256:5678")),
        a_layer(a_stock_image(disk=Path("/moved/disk.qcow2"))),
        a_layer(firmware="uefi"),
        a_layer(kernel=KERNEL),
        a_layer(disk_gib=20),
        a_layer(memory_mib=2048),
    ],
    ids=["digest", "disk", "firmware", "kernel", "disk-size", "memory"],
)
def test_whatever_changes_a_stock_checkpoint_counts(other: Layer) -> None:
    here = a_layer()

    assert parts_of(other) != parts_of(here)


@pytest.mark.usefixtures("ovmf")
def test_place_of_a_machine_does_not_count() -> None:
    layer = a_layer(firmware="uefi")

    here, there = (parts_of(layer, Path(each)) for each in ("/runs", "/moved"))

    assert here == there
    assert "/runs" not in str(here)


def test_layer_is_as_good_a_key_as_any_other() -> None:
    assert {a_layer(), a_layer()} == {a_layer()}


def test_ovmf_that_was_replaced_counts(ovmf: Path) -> None:
    before = a_layer(firmware="uefi").origin.parts()

    (ovmf / "OVMF_CODE_4M.fd").write_text("newer code")

    assert a_layer(firmware="uefi").origin.parts() != before


def test_stock_node_takes_its_driver_from_the_images_entry_and_no_kernel() -> None:
    request = NodeRequest(name="node", image=a_stock_image())

    assert request.node_config()["gpu_driver_version"] == "580.1"
    with pytest.raises(HarnessError, match="Which kernel the stock image 'noble' boots"):
        _ = request.booted_kernel
    with pytest.raises(BadInputError, match="boots the kernel that its boot loader takes"):
        replace(request, kernel=an_image().newest_kernel)


def test_stock_nodes_seed_brings_agent_files_and_provisioning(tmp_path: Path) -> None:
    for name in ("user.pub", "host", "host.pub"):
        (tmp_path / name).touch()
    layer = a_layer()
    origin = layer.origin
    assert isinstance(origin, StockOrigin)
    shape = Shape(
        accelerator=Accelerator.TCG, qemu="qemu", memory_mib=1024, slots=1, has_apertures=False
    )
    spec = origin.spec("node", shape, disk=tmp_path / "disk", folder=tmp_path)
    node = Node(
        NodeRequest(name="node", image=origin.image),
        LabMachine(spec, tmp_path, an_equipment(tmp_path)),
        payload=Payload(content=b"", digest="0" * 64),
        identity=SshIdentity(folder=tmp_path),
        early=agent_commands(IMAGES),
    )

    user_data = yaml.safe_load(node._render_seed().user_data)

    assert user_data["bootcmd"] == [list(argv) for argv in agent_commands(IMAGES)]
    assert "boot" in user_data["runcmd"][-1][-1]
    assert "/etc/gpu-node/config.json" in [file["path"] for file in user_data["write_files"]]
