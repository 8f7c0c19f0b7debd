"""The catalogue of GPU models, and what a GPU adds to a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.gpu import (
    PMC_BOOT_0,
    PMC_BOOT_42,
    GpuAttachment,
    load_catalogue,
    root_port_window_mib,
)

if TYPE_CHECKING:
    from pathlib import Path

_MODEL = """\
title: My GPU
architecture: Mine
pci:
  vendor: 0x10de
  device: 0x1234
  subsystem_vendor: 0x10de
  subsystem: 0x0001
  class_code: 0x030200
  revision: 0xa1
chip: 0x172
bars_mib:
  mpqemu: {0: 16, 1: 32}
"""


def _model(folder: Path, text: str = _MODEL, name: str = "my-gpu.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("name", "ids", "subsystem", "boot_0", "boot_42"),
    [
        ("h100-sxm5-80gb", "10de:2330", 0x16C1, 0x180000A1, 0x180A1000),
        ("a100-sxm4-40gb", "10de:20b0", 0x134F, 0x170000A1, 0x170A1000),
    ],
)
def test_shipped_model_is_what_nvidias_driver_looks_for(
    name: str, ids: str, subsystem: int, boot_0: int, boot_42: int
) -> None:
    model = load_catalogue().get(name)

    assert str(model.pci) == ids
    assert (model.pci.subsystem_vendor, model.pci.subsystem) == (0x10DE, subsystem)
    assert (model.pci.class_code, model.pci.revision) == (0x030200, 0xA1)
    assert model.boot_registers == {PMC_BOOT_0: boot_0, PMC_BOOT_42: boot_42}
    assert model.bars_mib.mpqemu == {0: 16, 1: 16, 3: 16}


def test_implementation_and_revision_have_fields_of_their_own(tmp_path: Path) -> None:
    _model(tmp_path, _MODEL.replace("0xa1", "0xb2"))

    registers = load_catalogue(tmp_path).get("my-gpu").boot_registers

    assert registers == {PMC_BOOT_0: 0x172000B2, PMC_BOOT_42: 0x172B2000}


def test_user_adds_a_model_by_a_file(tmp_path: Path) -> None:
    _model(tmp_path, _MODEL + "registers: {0x88000: 0xffffffff}\n")

    catalogue = load_catalogue(tmp_path)

    assert catalogue.get("my-gpu").boot_registers[0x88000] == 0xFFFFFFFF
    assert "h100-sxm5-80gb" in catalogue.models


def test_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    _model(tmp_path)

    with pytest.raises(BadInputError) as slip:
        load_catalogue(tmp_path).get("h10")

    assert "'a100-sxm4-40gb', 'h100-sxm5-80gb', 'my-gpu'" in str(slip.value)
    assert str(tmp_path) in slip.value.source


@pytest.mark.parametrize(
    ("slip", "line", "key", "words"),
    [
        (("  device: 0x1234", "  devise: 0x1234"), 5, "pci.devise", "'vendor', 'device'"),
        (("chip: 0x172", "chip: 0x172\nmig: true"), 11, "mig", "'chip', 'bars_mib'"),
        (("device: 0x1234", "device: 0x12345"), 5, "pci.device", "65535"),
        (("{0: 16, 1: 32}", "{0: 16, 1: 24}"), 12, "bars_mib.mpqemu.1", "power of two"),
        (("{0: 16, 1: 32}", "{0: 16, 1: 2048}"), 12, "bars_mib.mpqemu.1", "256"),
        (("{0: 16, 1: 32}", "{0: 16, 6: 16}"), 12, "bars_mib.mpqemu.6", "5"),
        (("{0: 16, 1: 32}", "{1: 16}"), None, "bars_mib.mpqemu", "BAR 0"),
        (("  mpqemu:", "  vfio:"), 12, "bars_mib.vfio", "'mpqemu'"),
    ],
)
def test_slip_in_a_model_is_told_with_its_place(
    tmp_path: Path, slip: tuple[str, str], line: int | None, key: str, words: str
) -> None:
    file = _model(tmp_path, _MODEL.replace(*slip))

    with pytest.raises(BadInputError, match=words) as told:
        load_catalogue(tmp_path)

    assert (told.value.source, told.value.line, told.value.key) == (str(file), line, key)


def test_second_model_of_one_name_is_refused(tmp_path: Path) -> None:
    file = _model(tmp_path, name="h100-sxm5-80gb.yaml")

    with pytest.raises(BadInputError, match="already is") as slip:
        load_catalogue(tmp_path)

    assert slip.value.source == str(file)


def test_file_name_that_cannot_name_a_model_is_refused(tmp_path: Path) -> None:
    _model(tmp_path, name="My GPU.yaml")

    with pytest.raises(BadInputError, match="lower-case"):
        load_catalogue(tmp_path)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no folder"):
        load_catalogue(tmp_path / "none")


def _attachment(device_id: str = "gpu0", **properties: str) -> GpuAttachment:
    return GpuAttachment(
        id=device_id,
        driver="x-pci-proxy-dev",
        fd=7,
        root_port_window_mib=64,
        properties=properties,
    )


def test_attachment_plugs_at_start() -> None:
    assert _attachment().to_device_argv("rp0") == "x-pci-proxy-dev,id=gpu0,fd=7,bus=rp0"


def test_attachment_plugs_hot() -> None:
    assert _attachment().to_device_add("rp0", "fd-gpu0") == {
        "driver": "x-pci-proxy-dev",
        "id": "gpu0",
        "fd": "fd-gpu0",
        "bus": "rp0",
    }


def test_comma_in_a_property_stays_in_it() -> None:
    attachment = _attachment(note="a,b")

    assert attachment.to_device_argv("rp0").endswith(",note=a,,b")
    assert attachment.to_device_add("rp0", "fd")["note"] == "a,b"


@pytest.mark.parametrize("device_id", ["", "0gpu", "gpu,fd=0", "gpu 0"])
def test_id_that_qemu_refuses_is_refused(device_id: str) -> None:
    with pytest.raises(BadInputError, match="device's id"):
        _attachment(device_id)


@pytest.mark.parametrize(
    ("bars_mib", "window_mib"),
    [({0: 16}, 64), ({0: 16, 1: 16, 3: 16}, 64), ({0: 32, 1: 32}, 64), ({0: 16, 1: 64}, 128)],
)
def test_root_port_window_has_room_for_every_bar(
    bars_mib: dict[int, int], window_mib: int
) -> None:
    assert root_port_window_mib(bars_mib) == window_mib
