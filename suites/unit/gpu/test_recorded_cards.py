"""GPU models match recordings of real cards; see `fixtures/data/recordings/README.md`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from harness.fixtures.recordings import load_recording, recording_names
from harness.gpu.catalogue import load_catalogue
from harness.gpu.config_space import EXPRESS, EXPRESS_SIZE, ConfigSpace
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.gsp.making import make_engine
from harness.provisioning.mig import INSTANCES
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from harness.gpu import GpuModel

_CARDS = {"h100": "h100-sxm5-80gb", "h200": "h200-sxm5-141gb"}
#: NVIDIA's list of products has two boards of the H200: the model is one board, and the recorded
#: card is the other board.
_OTHER_BOARD = {"h200": 0x18BF}
_LINE_BYTES = 16
#: The flags of a prefetchable 64-bit BAR; all BARs of these cards have these flags.
_BAR_KIND = 0xC

each_card = pytest.mark.parametrize("card", _CARDS)


def config_space(card: str) -> bytes:
    """Return a recorded configuration space; in the dump, `*` means that the line above repeats."""
    found = bytearray()
    for line in load_recording(f"pci/6.18-{card}-config-space").text.splitlines():
        if line == "*":
            continue
        offset, *octets = line.split()
        while len(found) < int(offset, 16):
            found += found[-_LINE_BYTES:]
        found += bytes.fromhex("".join(octets))
    return bytes(found)


def bar_sizes(card: str) -> dict[int, int]:
    """Return the size of each BAR in MiB, from the first and the last address in sysfs."""
    text = load_recording(f"pci/6.18-{card}-attributes").text
    ranges = re.findall(r"(0x[0-9a-f]{16}) (0x[0-9a-f]{16}) 0x[0-9a-f]{16}$", text, re.MULTILINE)
    sizes = {index: int(last, 16) - int(first, 16) for index, (first, last) in enumerate(ranges)}
    return {index: (size + 1) >> 20 for index, size in sizes.items() if size}


def _model(card: str) -> GpuModel:
    return load_catalogue().get(_CARDS[card])


@each_card
def test_bars_and_configuration_space_header_of_the_model_match_the_recorded_card(
    card: str,
) -> None:
    """Only the board id of the H200 and the list of capabilities differ."""
    model, real = _model(card), config_space(card)
    bars = model.bars.vfio_user
    assert {index: bar.size >> 20 for index, bar in bars.items()} == bar_sizes(card)
    assert {bar.bits for bar in bars.values()} == {64}
    assert {real[0x10 + 4 * index] & 0xF for index in bars} == {_BAR_KIND}

    space = ConfigSpace(model.pci, model.bars.vfio_user, is_express=True)
    made = bytes(space.read(offset, 1) for offset in range(EXPRESS_SIZE))

    assert made[0x00:0x04] == real[0x00:0x04]
    assert made[0x08:0x0C] == real[0x08:0x0C]
    assert [made[0x10 + 4 * index] for index in (0, 2, 4)] == [
        real[0x10 + 4 * index] for index in (0, 2, 4)
    ]
    assert made[0x2C:0x2E] == real[0x2C:0x2E]
    assert made[EXPRESS] == real[EXPRESS] == 0x10


@each_card
def test_capabilities_of_the_emulated_gpu_are_at_the_offsets_of_the_recorded_card(
    card: str,
) -> None:
    """The driver reads the width and the speed of a Hopper GPU's link at fixed offsets."""
    model, real = _model(card), config_space(card)
    gpu = EmulatedGpu(
        model,
        bars=model.bars.vfio_user,
        is_express=True,
        engine=make_engine(model.emulated_as(GpuEmulation.GSP), model.bars.vfio_user, 1),
    )
    made = bytes(gpu.config_read(offset, 1) for offset in range(EXPRESS_SIZE))

    assert made[0x34] == real[0x34]
    assert made[0x40:0x42] == real[0x40:0x42]
    assert made[0x48:0x4A] == real[0x48:0x4A]
    assert made[EXPRESS] == real[EXPRESS]
    # The register contains the link's speed and its number of lanes.
    speed_and_width = [int.from_bytes(each[0x6C:0x6E], "little") & 0x3FF for each in (made, real)]
    assert speed_and_width == [16 << 4 | 5] * 2
    # The message address, whose lowest two bits stay 0, and the message data can be written.
    gpu.config_write(0x4C, (1 << 80) - 1, 10)
    assert gpu.config_read(0x4C, 10) == (1 << 80) - 4


@each_card
def test_names_and_pci_ids_of_the_model_match_the_recordings(card: str) -> None:
    report = load_recording(f"nvidia-smi/580.159.04-{card}-q").text
    assert re.findall(r"Product Name +: (.*)", report) == [_model(card).title]
    assert re.findall(r"Product Architecture +: (.*)", report) == [_model(card).architecture]

    answers = json.loads(load_recording(f"nvml/580.159.04-{card}-answers").text)["answers"]
    pci = _model(card).pci
    board = _OTHER_BOARD.get(card, pci.subsystem)

    assert answers["nvmlDeviceGetName"] == _model(card).title
    assert answers["nvmlDeviceGetPciInfo"]["pciDeviceId"] == pci.device << 16 | pci.vendor
    assert answers["nvmlDeviceGetPciInfo"]["pciSubSystemId"] == board << 16 | pci.subsystem_vendor
    assert answers["nvmlDeviceGetBAR1MemoryInfo"]["bar1Total"] >> 20 == bar_sizes(card)[2]


@each_card
def test_provisioning_creates_as_many_mig_instances_of_each_profile_as_the_card_allows(
    card: str,
) -> None:
    """Each profile id exists on the card, and the number of instances is the card's maximum."""
    table = load_recording(f"nvidia-smi/580.159.04-{card}-mig-lgip").text
    takes = {
        number: int(most) for number, most in re.findall(r"MIG \S+ +(\d+) +\d+/(\d+) ", table)
    }
    answers = json.loads(load_recording(f"nvml/580.159.04-{card}-answers").text)["answers"]
    by_nvml = {
        str(profile["id"]): profile["instanceCount"]
        for profile in answers.values()
        if isinstance(profile, dict) and "instanceCount" in profile
    }

    assert takes == by_nvml
    for asked in INSTANCES.values():
        ids = asked.split(",")
        assert takes[ids[0]] == len(ids)
        assert len(set(ids)) == 1
    assert _model(card).has_mig


@each_card
def test_all_recordings_of_a_card_have_the_same_invented_uuid_and_serial_number(card: str) -> None:
    number = {"h100": "100", "h200": "200"}[card]
    report = load_recording(f"nvidia-smi/580.159.04-{card}-q").text
    texts = [load_recording(name).text for name in recording_names() if f"04-{card}-" in name]
    uuids = {uuid for text in texts for uuid in re.findall(r"GPU-[0-9a-f-]{36}", text)}

    assert uuids == {f"GPU-00000000-0000-4000-8000-000000000{number}"}
    assert re.findall(r"Serial Number +: (\d+)", report) == [f"1000000000{number}"]
    assert re.findall(r"GPU PDI +: (\S+)", report) == [f"0x0000000000000{number}"]
    # Of the device serial number, only the vendor's 48-b0-2d is real.
    serial = {"h100": "48b02d0000000100", "h200": "48b02d0000000200"}[card]
    assert config_space(card)[0x2F4:0x2FC].hex() == serial
