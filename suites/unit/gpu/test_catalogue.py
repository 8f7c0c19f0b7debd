"""The catalogue of GPU models, and what a GPU adds to a machine."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import pytest

from harness.entry_points import Group, Plugin
from harness.errors import BadInputError
from harness.gpu import (
    PMC_BOOT_0,
    PMC_BOOT_42,
    Bar,
    GpuAttachment,
    aperture_mib,
    root_port_window_mib,
    shrink_to_aperture,
    shrink_to_window,
)
from harness.gpu import catalogue as catalogue_module
from harness.gpu.catalogue import find_model, load_catalogue
from suites.unit.gpu.models import MODEL_FILE

if TYPE_CHECKING:
    from pathlib import Path

_NODE = """\
title: Two of mine
model: my-gpu
count: 2
vm_size: Standard_Mine
"""


def _model(folder: Path, text: str = MODEL_FILE, name: str = "my-gpu.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_error_shows_every_package_with_unusable_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = [
        Plugin(group=Group.GPU_MODELS, name=name, value="harness.errors", distribution="'x 1'")
        for name in ("one", "two")
    ]
    monkeypatch.setattr(catalogue_module, "plugins", lambda _: broken)

    with pytest.raises(BadInputError, match=r"no GPU model 'x'.* 'one' .* 'two' "):
        load_catalogue().get("x")


def test_shipped_models_have_the_pci_ids_and_boot_registers_that_the_nvidia_driver_reads() -> None:
    models = load_catalogue().models
    found = {
        name: (
            str(model.pci),
            model.pci.subsystem,
            model.pcie_generation,
            *model.boot_registers.values(),
        )
        for name, model in models.items()
    }

    assert found == {
        "t4-16gb": ("10de:1eb8", 0x12A2, 3, 0x164000A1, 0x164A1000),
        "v100-pcie-16gb": ("10de:1db4", 0x1214, 3, 0x140000A1, 0x140A1000),
        "a10-24gb": ("10de:2236", 0x1482, 4, 0x172000A1, 0x172A1000),
        "a100-sxm4-40gb": ("10de:20b0", 0x134F, 4, 0x170000A1, 0x170A1000),
        "a100-sxm4-80gb": ("10de:20b2", 0x1463, 4, 0x170000A1, 0x170A1000),
        "h100-sxm5-80gb": ("10de:2330", 0x16C1, 5, 0x180000A1, 0x180A1000),
        "h200-sxm5-141gb": ("10de:2335", 0x18BE, 5, 0x180000A1, 0x180A1000),
        "l4-24gb": ("10de:27b8", 0x16EE, 4, 0x194000A1, 0x194A1000),
        "l40s-48gb": ("10de:26b9", 0x1851, 4, 0x192000A1, 0x192A1000),
        "rtx-pro-6000-server-96gb": ("10de:2bb5", 0x204E, 5, 0x1B2000A1, 0x1B2A1000),
    }
    for model in models.values():
        assert [*model.boot_registers] == [PMC_BOOT_0, PMC_BOOT_42], model
        assert model.pci.subsystem_vendor == 0x10DE, model
        assert (model.pci.class_code, model.pci.revision) == (0x030200, 0xA1), model
        # The driver maps 32 MiB of Hopper's BAR 2. BAR 1 has only 8 MiB, so that all BARs fit into
        # any window of 64 MiB.
        sizes = [16, 8, 32] if model.architecture == "Hopper" else [16, 16, 16]
        assert [bar.mib for bar in model.bars.mpqemu.values()] == sizes, model
        assert model.ids_from, model


def test_bar_0_is_64bit_on_hopper_and_32bit_on_ampere() -> None:
    catalogue = load_catalogue()

    assert catalogue.get("h100-sxm5-80gb").bars.vfio_user == {
        0: Bar(mib=16, bits=64),
        2: Bar(mib=128 << 10, bits=64),
        4: Bar(mib=32, bits=64),
    }
    assert catalogue.get("a100-sxm4-40gb").bars.vfio_user == {
        0: Bar(mib=16),
        1: Bar(mib=64 << 10, bits=64),
        3: Bar(mib=32, bits=64),
    }


def test_shipped_node_has_eight_gpus_of_one_model() -> None:
    node = load_catalogue().node("nd96isr-h100-v5")

    assert [gpu.name for gpu in node.gpus] == ["h100-sxm5-80gb"] * 8
    assert node.needs_fabric_manager


def test_model_revision_is_in_the_revision_field_of_both_boot_registers(
    tmp_path: Path,
) -> None:
    _model(tmp_path, MODEL_FILE.replace("0xa1", "0xb2"))

    registers = load_catalogue(tmp_path).get("my-gpu").boot_registers

    assert registers == {PMC_BOOT_0: 0x172000B2, PMC_BOOT_42: 0x172B2000}


def test_user_can_add_a_model_with_a_file(tmp_path: Path) -> None:
    """Registers in the file override the registers that follow from the chip."""
    _model(tmp_path, MODEL_FILE + "registers: {0x88000: 0xffffffff, 0xa00: 5}\n")

    catalogue = load_catalogue(tmp_path)

    registers = catalogue.get("my-gpu").boot_registers
    assert registers == {PMC_BOOT_0: 0x172000A1, PMC_BOOT_42: 5, 0x88000: 0xFFFFFFFF}
    assert "h100-sxm5-80gb" in catalogue.models


def test_user_can_add_a_kind_of_node_with_a_file(tmp_path: Path) -> None:
    _model(tmp_path)
    (tmp_path / "nodes").mkdir()
    _model(tmp_path / "nodes", _NODE, "two.yaml")

    node = load_catalogue(tmp_path).node("two")

    assert (node.model.name, node.count, node.needs_fabric_manager) == ("my-gpu", 2, False)


def test_error_for_a_node_with_an_unknown_model_mentions_the_file_and_the_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "nodes").mkdir()
    file = _model(tmp_path / "nodes", _NODE, "two.yaml")

    with pytest.raises(BadInputError, match="no GPU model 'my-gpu'") as slip:
        load_catalogue(tmp_path)

    assert (slip.value.source, slip.value.line, slip.value.key) == (str(file), 2, "model")


def test_model_without_bars_for_vfio_user_uses_the_bars_for_mpqemu(tmp_path: Path) -> None:
    lines = [line for line in MODEL_FILE.splitlines() if "vfio" not in line]
    _model(tmp_path, "\n".join(lines))

    bars = load_catalogue(tmp_path).get("my-gpu").bars

    assert bars.vfio_user == bars.mpqemu == {0: Bar(mib=16), 1: Bar(mib=32)}


def test_error_for_an_unknown_model_shows_the_known_models(tmp_path: Path) -> None:
    _model(tmp_path)

    with pytest.raises(BadInputError) as slip:
        load_catalogue(tmp_path).get("h10")

    assert "'l4-24gb', 'l40s-48gb', 'my-gpu', 'rtx-pro-6000-server-96gb'" in str(slip.value)
    assert str(tmp_path) in slip.value.source


def test_error_for_an_invalid_model_mentions_the_file_and_the_line_and_the_key(
    tmp_path: Path,
) -> None:
    for slip, line, key, words in (
        (("  device: 0x1234", "  devise: 0x1234"), 5, "pci.devise", "'vendor', 'device'"),
        (("mig: false", "mig: false\nsize: 3"), 18, "size", "'chip', 'bars_mib'"),
        (("mig: false", "mig: perhaps"), 17, "mig", "boolean"),
        (("[cuda]", "[cuda, cuda-lts]"), 16, "driver_kinds.1", "'cuda' or 'grid'"),
        (("[cuda]", "[]"), 16, "driver_kinds", "at least 1"),
        (('"a test"', '""'), 10, "ids_from", "at least 1"),
        (("device: 0x1234", "device: 0x12345"), 5, "pci.device", "65535"),
        (("{0: 16, 1: 32}", "{0: 16, 1: 24}"), 13, "bars_mib.mpqemu.1", "power of two"),
        (("{0: 16, 1: 32}", "{0: 16, 1: 2048}"), 13, "bars_mib.mpqemu.1", "256"),
        (("{0: 16, 1: 32}", "{0: 16, 6: 16}"), 13, "bars_mib.mpqemu.6", "5"),
        (("{0: 16, 1: 32}", "{1: 16}"), None, "bars_mib.mpqemu", "BAR 0"),
        (("vfio_user: {0: 16}", "vfio_user: {2: 16}"), 15, "bars_mib.vfio_user_64bit.1", "BAR 2"),
        (("{1: 1024}", "{5: 1024}"), 15, "bars_mib.vfio_user_64bit.5", "4"),
        (("{1: 1024}", "{1: 64, 2: 64}"), 15, "bars_mib.vfio_user_64bit.1", "BAR 2"),
        (("vfio_user: {0: 16}", "vfio_user: {3: 16}"), None, "bars_mib.vfio_user", "BAR 0"),
        (("  mpqemu:", "  vfio:"), 13, "bars_mib.vfio", "'mpqemu'"),
    ):
        file = _model(tmp_path, MODEL_FILE.replace(*slip))

        with pytest.raises(BadInputError, match=words) as caught:
            load_catalogue(tmp_path)

        assert (caught.value.source, caught.value.line, caught.value.key) == (str(file), line, key)


def test_second_model_with_the_same_name_is_refused(tmp_path: Path) -> None:
    file = _model(tmp_path, name="h100-sxm5-80gb.yaml")

    for load in (load_catalogue, functools.partial(find_model, "h100-sxm5-80gb")):
        with pytest.raises(BadInputError, match="Another folder has a model") as slip:
            load(tmp_path)
        assert slip.value.source == str(file)
    file.unlink()
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        file = _model(folder)
    with pytest.raises(BadInputError, match="Another folder has a model 'my-gpu'") as slip:
        load_catalogue(tmp_path / "a", tmp_path / "b")
    assert slip.value.source == str(file)


def test_model_file_with_an_invalid_name_is_refused(tmp_path: Path) -> None:
    for name in ("My-gpu.yaml", "my gpu.yaml"):
        file = _model(tmp_path, name=name)

        with pytest.raises(BadInputError, match="lower-case"):
            load_catalogue(tmp_path)
        file.unlink()


def test_missing_folder_of_models_is_refused(tmp_path: Path) -> None:
    file = _model(tmp_path)
    for folder in (tmp_path / "none", file):
        with pytest.raises(BadInputError, match="does not exist"):
            load_catalogue(folder)


def _attachment(device_id: str = "gpu0", **properties: str) -> GpuAttachment:
    return GpuAttachment(
        id=device_id,
        driver="x-pci-proxy-dev",
        fd=7,
        root_port_window_mib=64,
        properties=properties,
    )


def test_qemu_arguments_contain_the_descriptor_and_the_bus_and_escaped_properties() -> None:
    attachment = _attachment(note="a,b")

    (argument,) = attachment.to_device_argv("rp0")
    (device,) = attachment.to_device_add("rp0", "fd-gpu0")

    assert argument == "x-pci-proxy-dev,id=gpu0,fd=7,bus=rp0,note=a,,b"
    ids = {"driver": "x-pci-proxy-dev", "id": "gpu0", "fd": "fd-gpu0", "bus": "rp0"}
    assert device == {**ids, "note": "a,b"}


def test_device_id_that_qemu_would_refuse_raises_an_error() -> None:
    accepted = []
    for device_id in ("", "0gpu", "gpu,fd=0"):
        with contextlib.suppress(BadInputError):
            accepted.append(_attachment(device_id))

    assert accepted == []


def test_root_port_window_is_large_enough_for_every_bar() -> None:
    windows = {(16,): 64, (16, 16, 16): 64, (32, 32): 64, (16, 64): 128}

    assert {
        sizes: root_port_window_mib(dict(enumerate(Bar(mib=mib) for mib in sizes)))
        for sizes in windows
    } == windows


def test_64bit_bars_enlarge_the_aperture_of_a_root_port_but_not_its_window() -> None:
    bars = load_catalogue().get("a100-sxm4-40gb").bars.vfio_user

    assert (root_port_window_mib(bars), aperture_mib(bars)) == (64, 128 << 10)
    assert aperture_mib({0: Bar(mib=16)}) == 0


def test_largest_bar_is_halved_until_all_bars_fit() -> None:
    bars = load_catalogue().get("h200-sxm5-141gb").bars.vfio_user

    assert {index: bar.mib for index, bar in shrink_to_aperture(bars, 64 << 10).items()} == {
        0: 16,
        2: 32 << 10,
        4: 32,
    }
    assert shrink_to_aperture(bars, 512 << 10) == bars


def test_32_bit_bars_take_at_most_half_of_a_window() -> None:
    """A window need not be aligned to the size of a BAR that is plugged later."""
    wide = Bar(mib=128 << 10, bits=64)
    fitting = {
        ((64,), 64): [32],
        ((64,), 128): [64],
        ((32,), 64): [32],
        ((32, 16), 64): [16, 16],
        ((), 64): [],
    }
    found = {}
    for sizes, window_mib in fitting:
        bars = {**dict(enumerate(Bar(mib=mib) for mib in sizes)), 2: wide}
        narrow = {**shrink_to_window(bars, window_mib)}
        assert narrow.pop(2) == wide
        found[sizes, window_mib] = [bar.mib for bar in narrow.values()]

    assert found == fitting


def test_window_that_is_too_small_for_any_bar_is_refused() -> None:
    with pytest.raises(
        BadInputError, match=r"32-bit BARs of \[1\] MiB do not fit .* has 1 MiB; raise"
    ):
        shrink_to_window({0: Bar(mib=16)}, 1)
    with pytest.raises(BadInputError, match=r"64-bit BARs .* do not fit .* has 0 MiB; raise"):
        shrink_to_aperture({0: Bar(mib=16, bits=64)}, 0)


def test_shrunk_32bit_bars_of_every_model_fit_into_half_of_a_64_mib_window() -> None:
    for model in load_catalogue().models.values():
        bars = shrink_to_window(model.bars.vfio_user, 64)
        assert sum(bar.mib for bar in bars.values() if bar.bits == 32) <= 32


def test_file_with_another_format_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    _model(tmp_path)
    for place, text in (("nodes/my-node.yaml", _NODE), ("my-gpu.yaml", MODEL_FILE)):
        _model(tmp_path, f"schema: 2\n{text}", place)

        with pytest.raises(BadInputError, match=f"{place}:1: key 'schema': .* format 2"):
            load_catalogue(tmp_path)


def test_model_and_node_files_may_lack_the_format_version(tmp_path: Path) -> None:
    """Files of earlier releases have no version."""
    (tmp_path / "nodes").mkdir()
    _model(tmp_path, f"schema: 1\n{MODEL_FILE}")
    _model(tmp_path, f"schema: 1\n{_NODE}", "nodes/new.yaml")
    _model(tmp_path, _NODE, "nodes/old.yaml")

    catalogue = load_catalogue(tmp_path)

    assert catalogue.node("new").model == catalogue.node("old").model == catalogue.get("my-gpu")


def test_one_model_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MODEL_FILE)

    assert find_model("mine", tmp_path).name == "mine"
    assert find_model("h100-sxm5-80gb") == load_catalogue().get("h100-sxm5-80gb")
    for name in ("../x", "h200-typo"):
        with pytest.raises(BadInputError, match=r"no GPU model .*, only .*h100-sxm5-80gb"):
            find_model(name)
