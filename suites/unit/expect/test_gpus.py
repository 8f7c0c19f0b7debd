"""Expectations on GPUs of any vendor; the models in the catalogue decide which PCI functions are GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.gpu.catalogue import load_catalogue
from suites.unit.evidence.folders import EvidenceFolder, a_serving_node, a_stripped_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.gpu import GpuModel

_HOST_BRIDGE = "00:00.0 Host bridge [0600]: Intel Corporation 82G33 [8086:29c0]\n"
_NVIDIA = "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
_NVIDIA_SWITCH = "02:00.0 Bridge [0680]: NVIDIA Corporation GH100 [10de:22a3] (rev a1)\n"
_OTHER = (
    "03:00.0 Processing accelerators [1200]: Acme Corporation A1 [1de5:0007]\n"
    "\tKernel driver in use: nvidia\n"
)
_OTHER_SOUND = "03:00.1 Audio device [0403]: Acme Corporation A1 [1de5:0008]\n"


@pytest.fixture
def nvidia() -> GpuModel:
    return load_catalogue().get("h100-sxm5-80gb")


@pytest.fixture
def acme(nvidia: GpuModel) -> GpuModel:
    """Return a model whose vendor is not in the catalogue, with another PCI class."""
    pci = replace(nvidia.pci, vendor=0x1DE5, device=7, class_code=0x120000)
    return replace(nvidia, name="acme-a1", pci=pci)


def on_bus(folder: Path, *functions: str) -> EvidenceFolder:
    return EvidenceFolder(folder).command("lspci", "".join((_HOST_BRIDGE, *functions)))


def test_gpu_verdict_on_a_jetson_without_pci_gpus_is_unknown(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).command("lspci", _HOST_BRIDGE)
    jetson = folder.command("uname-r", "5.15.148-tegra\n").evidence

    for judge in (expect.has_gpus, expect.every_gpu_driven):
        with pytest.raises(HarnessError, match="may not be on the PCI bus"):
            judge(jetson)


def test_gpus_are_matched_by_vendor_and_device_of_their_model(
    tmp_path: Path, nvidia: GpuModel, acme: GpuModel
) -> None:
    evidence = on_bus(tmp_path, _NVIDIA, _NVIDIA_SWITCH, _OTHER, _OTHER_SOUND).evidence

    expect.gpus_on_bus(evidence, acme, nvidia)
    expect.gpus_on_bus(evidence, nvidia)
    expect.gpus_on_bus(evidence, acme)
    expect.gpus_on_bus(evidence, "10de:2330")
    expect.gpus_driven(evidence, acme)
    expect.gpus_on_bus(evidence, acme, "2330")
    assert expect.has_gpus(
        on_bus(tmp_path / "two", _NVIDIA, _NVIDIA.replace("01:", "02:")).evidence
    ) == ("The PCI bus has 10de:2330 at 01:00.0, 10de:2330 at 02:00.0.")
    with pytest.raises(ExpectationError, match=r"\['/dev/nvidiactl', '/dev/nvidia0'\] were"):
        expect.gpu_bound(on_bus(tmp_path, _OTHER).paths().evidence, device=acme)
    with pytest.raises(ExpectationError, match=r"\['1de5:0007'\] were expected .* were \[\]\."):
        expect.gpus_on_bus(on_bus(tmp_path, _NVIDIA).evidence, acme)
    second = _OTHER.replace("03:", "04:").replace("0007", "0009")
    with pytest.raises(ExpectationError, match=r"were \['1de5:0007', '1de5:0009'\]"):
        expect.gpus_on_bus(on_bus(tmp_path, _OTHER, second).evidence, acme)


def test_gpu_of_another_vendor_with_the_same_device_id_is_refused(
    tmp_path: Path, nvidia: GpuModel, acme: GpuModel
) -> None:
    both = replace(acme, pci=replace(acme.pci, device=nvidia.pci.device))
    evidence = on_bus(tmp_path, _NVIDIA).evidence

    expect.gpus_on_bus(evidence, nvidia)
    with pytest.raises(ExpectationError, match=r"\['1de5:2330'\] were expected"):
        expect.gpus_on_bus(evidence, both)
    with pytest.raises(ExpectationError, match=r"\['1de5:2330'\] were expected"):
        expect.gpus_on_bus(evidence, "1de5:2330")


def test_bus_without_a_gpu_is_accepted_even_if_it_has_other_pci_functions_of_the_vendor(
    tmp_path: Path,
) -> None:
    expect.no_gpu(on_bus(tmp_path, _NVIDIA_SWITCH, _OTHER).evidence)
    with pytest.raises(ExpectationError, match=r"No GPU was expected, but .*device='2330'"):
        expect.no_gpu(on_bus(tmp_path, _NVIDIA_SWITCH, _NVIDIA).evidence)


def a_function(
    slot: str, class_code: str = "0302", device: str = "10de:2330", driver: str | None = "nvidia"
) -> str:
    in_use = "" if driver is None else f"\tKernel driver in use: {driver}\n"
    return f"{slot} A device [{class_code}]: A vendor [{device}] (rev a1)\n{in_use}"


def test_nvidia_vga_and_3d_and_display_controllers_count_as_gpus(tmp_path: Path) -> None:
    node = a_serving_node(tmp_path)
    for slot, class_code in (
        ("01:00.0", "0300"),
        ("0001:00:00.0", "0302"),
        ("10000:0a:00.0", "0380"),
    ):
        bus = a_function("00:00.0", "0600", "8086:29c0", None) + a_function(slot, class_code)
        evidence = node.command("lspci", bus).evidence

        assert expect.has_gpus(evidence) == f"The PCI bus has 10de:2330 at {slot}."
        assert expect.every_gpu_driven(evidence).endswith(f"drives 10de:2330 at {slot}.")
        with pytest.raises(ExpectationError):
            expect.no_gpu(evidence)


def test_pci_function_that_is_not_a_display_controller_of_nvidia_is_not_a_gpu(
    tmp_path: Path,
) -> None:
    ids = (("0300", "1a03:2000"), ("0403", "10de:22ba"), ("1303", "10de:2330"))
    others = "".join(
        a_function(f"02:00.{n}", class_code, device, None)
        for n, (class_code, device) in enumerate(ids)
    )
    expect.no_gpu(a_stripped_node(tmp_path / "no GPU").command("lspci", others).evidence)
    for bus in (others + a_function("03:00.0"), a_function("01:00.0") + others):
        evidence = a_serving_node(tmp_path / "GPU").command("lspci", bus).evidence
        expect.every_gpu_driven(evidence)
        expect.gpus_on_bus(evidence, "2330")


def test_error_shows_only_gpus_without_the_driver_and_each_wrong_driver_once(
    tmp_path: Path,
) -> None:
    for drivers, words in (
        ((None, "nvidia"), "00:00.0 has no driver bound to it."),
        (("nvidia", None), "01:00.0 has no driver bound to it."),
        (("nouveau", None, "vfio-pci", "vfio-pci"), "03:00.0 is bound to ['nouveau', 'vfio-pci']"),
    ):
        bus = "".join(a_function(f"0{n}:00.0", driver=each) for n, each in enumerate(drivers))

        with pytest.raises(ExpectationError) as caught:
            expect.every_gpu_driven(a_serving_node(tmp_path).command("lspci", bus).evidence)
        assert words in str(caught.value)
        assert str(caught.value).count("10de:2330") == len(drivers) - drivers.count("nvidia")


def test_lost_gpus_are_reported_instead_of_a_gpu_with_another_driver(tmp_path: Path) -> None:
    lost = "".join(
        a_function(f"0{n}:00.0", driver=None).replace("rev a1", "rev ff") for n in (2, 3)
    )
    bus = a_function("01:00.0", driver="nouveau") + lost
    evidence = a_serving_node(tmp_path).command("lspci", bus).evidence
    words = r"space of 10de:2330 at 02:00\.0, 10de:2330 at 03:00\.0 reads all ones"

    with pytest.raises(ExpectationError, match=words):
        expect.every_gpu_driven(evidence)
    with pytest.raises(ExpectationError, match=words):
        expect.gpu_bound(evidence, device="2330")


def test_pci_id_of_a_gpu_is_accepted_in_several_notations(tmp_path: Path) -> None:
    evidence = a_serving_node(tmp_path).evidence

    for named in ("10DE:2330", "0x10de:0x2330", " 2330 "):
        expect.gpu_bound(evidence, device=named)
    expect.gpus_refused(a_serving_node(tmp_path).command("dmesg", REFUSED).evidence, "10DE:2BB5")
    for named in ("h100", "10de:2330:1", "10de:", "233", ""):
        with pytest.raises(BadInputError, match=f"'{named}' is not a PCI id of a GPU"):
            expect.gpus_driven(evidence, named)


def test_gpu_count_is_unknown_if_a_pci_function_reads_as_all_ones(tmp_path: Path) -> None:
    bus = a_function("01:00.0") + a_function("02:00.0", "ffff", "ffff:ffff", None)
    evidence = a_serving_node(tmp_path).command("lspci", bus).evidence

    for named in ("2330", "10de:2330", load_catalogue().get("h100-sxm5-80gb")):
        with pytest.raises(HarnessError, match=r"functions \['02:00\.0'\] read as all ones"):
            expect.gpus_on_bus(evidence, named)
    with pytest.raises(HarnessError, match=r"functions \['02:00\.0'\] read as all ones"):
        expect.no_gpu(evidence)


REFUSED = (
    "NVRM: The NVIDIA GPU 0001:0b:00.0 (PCI ID: 10de:2bb5)\n"
    "NVRM: installed in this system is not supported by the\n"
)


def test_unknown_nvrm_message_makes_refusals_unknown_only_if_it_mentions_a_gpu(
    tmp_path: Path,
) -> None:
    odd = "NVRM: something that no release has said yet\n"
    of_gpu = "NVRM: The NVIDIA GPU 0000:01:00.0 is in an odd mood\n"
    folder = a_serving_node(tmp_path)

    for log in (odd + REFUSED, REFUSED + odd):
        expect.gpus_refused(folder.command("dmesg", log).evidence, "2bb5")
    for log in (of_gpu + REFUSED, REFUSED + of_gpu, of_gpu.replace("odd", "even") + of_gpu):
        folder.command("dmesg", log)
        for named in (("2bb5",), ()):
            with pytest.raises(
                HarnessError, match=r"which GPUs the driver refuses.* in an odd mood"
            ):
                expect.gpus_refused(folder.evidence, *named)


def test_unknown_message_about_a_gpu_in_any_wording_makes_refusals_unknown(
    tmp_path: Path,
) -> None:
    node = a_serving_node(tmp_path)
    for line in (
        "The NVIDIA vGPU 0000:01:00.0 (PCI ID: 10de:2330) is in an odd mood",
        "GPU 0000:01:00.0: not today",
        "Open nvidia.ko likes no consumer GPUs",
    ):
        evidence = node.command("dmesg", f"[ 1.1] NVRM: {line}\n").evidence

        with pytest.raises(HarnessError, match="It is unknown which GPUs the driver refuses"):
            expect.gpus_refused(evidence)


PLACE = "/sys/bus/pci/devices/0000:01:00.0"
ON_BUS: tuple[Callable[[Evidence], object], ...] = (
    expect.every_gpu_driven,
    expect.has_gpus,
    lambda evidence: expect.gpu_bound(evidence, device="2330"),
    lambda evidence: expect.gpus_driven(evidence, "2330"),
)


def without_lspci(folder: Path, config: str | None) -> Evidence:
    """Return the evidence of a node without lspci; the ids and the driver are in the kernel's uevent."""
    event = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SLOT_NAME=0000:01:00.0\n"
    made = a_serving_node(folder).command("lspci", "", 127).file(f"{PLACE}/uevent", event)
    made.more_paths("d 755 0 1.0 /sys/bus/pci/devices")
    if config is not None:
        made.command("pci-config", config)
    return made.evidence


def test_lost_gpu_is_reported_from_its_configuration_space_without_lspci(tmp_path: Path) -> None:
    bridge = "/sys/bus/pci/devices/0000:00:00.0/config 86 80 c0 29\n"
    answering = without_lspci(tmp_path / "answering", f"{bridge}{PLACE}/config de 10 30 23\n")
    lost = without_lspci(tmp_path / "lost", f"{bridge}{PLACE}/config ff ff ff ff\n")

    for judge in ON_BUS:
        judge(answering)
        with pytest.raises(ExpectationError, match=r"reads all ones|is bound to \[\]"):
            judge(lost)
    expect.gpus_on_bus(lost, "2330")


def test_verdict_on_a_gpu_is_unknown_if_its_configuration_space_was_not_read(
    tmp_path: Path,
) -> None:
    for config in (None, "", f"{PLACE}/config de 10\n"):
        evidence = without_lspci(tmp_path, config)

        for judge in ON_BUS:
            with pytest.raises(
                HarnessError,
                match=r"^It is unknown whether 10de:2330 at 0000:01:00\.0 answers on the PCI bus",
            ):
                judge(evidence)
