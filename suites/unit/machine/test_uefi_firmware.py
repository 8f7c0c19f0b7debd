"""Which firmware descriptor of the host is chosen, and why other descriptors are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInputError, RequirementError
from harness.machine import uefi_firmware
from harness.machine.uefi_firmware import UefiFirmware, descriptor_folders, find_uefi_firmware


class Folder:
    """A folder of descriptors, and the firmware files that they name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.code, self.variables = path / "CODE.fd", path / "VARS.fd"
        self.code.write_text("code")
        self.variables.write_text("variables")

    @property
    def firmware(self) -> UefiFirmware:
        return UefiFirmware(code=self.code, variables=self.variables)

    def describe(self, name: str = "60-edk2.json", **changes: Any) -> Path:
        """Write a suitable descriptor with `changes`. The value None removes a key."""
        descriptor = {
            "description": "UEFI firmware for x86_64",
            "interface-types": ["uefi"],
            "mapping": self.mapping(),
            "targets": [{"architecture": "x86_64", "machines": ["pc-i440fx-*", "pc-q35-*"]}],
            "features": ["acpi-s3", "amd-sev", "verbose-dynamic"],
            "tags": [],
            **{key.replace("_", "-"): value for key, value in changes.items()},
        }
        file = self.path / name
        file.write_text(
            json.dumps({key: value for key, value in descriptor.items() if value is not None})
        )
        return file

    def mapping(self, **changes: Any) -> dict[str, Any]:
        return {
            "device": "flash",
            "executable": {"filename": str(self.code), "format": "raw"},
            "nvram-template": {"filename": str(self.variables), "format": "raw"},
            **changes,
        }


@pytest.fixture
def general(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "general")


@pytest.fixture
def specific(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "specific")


def find(*folders: Folder) -> UefiFirmware:
    return find_uefi_firmware([folder.path for folder in folders])


def test_firmware_is_found_through_a_matching_descriptor(general: Folder) -> None:
    """The descriptor may support other machine types too."""
    other = {"architecture": "aarch64", "machines": ["virt-*"]}
    general.describe(
        targets=[other, {"architecture": "x86_64", "machines": ["microvm", "pc-q35-*"]}]
    )

    assert find(general) == general.firmware


def test_descriptors_are_searched_in_the_system_folders_and_the_user_folder(
    general: Folder, specific: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    general.describe()
    specific.describe()
    monkeypatch.setattr(uefi_firmware, "_SYSTEM_FOLDERS", (general.path,))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(specific.path))
    assert find_uefi_firmware() == general.firmware

    (specific.path / "qemu").mkdir()
    (specific.path / "qemu/firmware").symlink_to(specific.path)

    assert find_uefi_firmware() == specific.firmware


def test_descriptor_whose_file_name_sorts_first_in_all_folders_is_used(
    general: Folder, specific: Folder
) -> None:
    general.describe("60-edk2.json")
    specific.describe("99-local.json")
    assert find(general, specific) == general.firmware

    specific.describe("50-local.json")

    assert find(general, specific) == specific.firmware


def test_descriptor_in_a_later_folder_overrides_a_descriptor_with_the_same_file_name(
    general: Folder, specific: Folder
) -> None:
    general.describe()
    specific.describe()

    assert find(general, specific) == specific.firmware


def test_empty_descriptor_hides_the_general_descriptor_of_the_same_name(
    general: Folder, specific: Folder
) -> None:
    general.describe("50-edk2.json")
    (specific.path / "50-edk2.json").touch()

    with pytest.raises(
        RequirementError,
        match=rf"'{general.path}', '{specific.path}' .*none at all.*apt-get install .*ovmf",
    ):
        find(general, specific)

    general.describe("60-edk2.json")
    assert find(general, specific) == general.firmware


def test_error_shows_every_unsuitable_firmware_with_the_reason(general: Folder) -> None:
    smm = general.describe("10-smm.json", features=["requires-smm"])
    bios = general.describe("20-bios.json", interface_types=["bios"])

    with pytest.raises(RequirementError) as caught:
        find(general)

    assert (
        f"; '{smm}' does not fit: it requires SMM; '{bios}' does not fit: it is not UEFI. On Debian"
    ) in str(caught.value)


def test_unsuitable_firmware_is_skipped_and_the_error_gives_the_reason(
    general: Folder, specific: Folder
) -> None:
    specific.describe("60-edk2.json")
    qcow2 = {"filename": str(general.code), "format": "qcow2"}
    no_q35 = {"architecture": "x86_64", "machines": ["pc-i440fx-*", "microvm"]}
    unfit: tuple[tuple[dict[str, Any], str], ...] = (
        ({"features": ["requires-smm", "secure-boot"]}, "it requires SMM"),
        ({"features": ["secure-boot"]}, "it implements Secure Boot"),
        ({"features": ["enrolled-keys"]}, "it has Secure Boot keys enrolled"),
        ({"interface_types": ["bios"]}, "it is not UEFI"),
        (
            {"targets": [{"architecture": "aarch64", "machines": ["pc-q35-*"]}]},
            "it is not for q35 of x86_64",
        ),
        ({"targets": [no_q35]}, "it is not for q35 of x86_64"),
        *(
            ({"mapping": mapping}, "its code and variables are not two flash files")
            for mapping in (
                {"device": "memory", "filename": "/usr/share/OVMF.fd"},
                general.mapping(device="kernel"),
                general.mapping(mode="combined"),
                general.mapping(executable=None),
                general.mapping(**{"nvram-template": None}),
            )
        ),
        (
            {"mapping": general.mapping(executable=qcow2)},
            f"'{general.code}' is not a raw image, but qcow2",
        ),
    )
    for changes, reason in unfit:
        file = general.describe("10-other.json", **changes)

        with pytest.raises(RequirementError) as caught:
            find(general)
        assert f"; '{file}' does not fit: {reason}. On Debian" in str(caught.value)
        assert find(general, specific) == specific.firmware


def test_descriptor_whose_firmware_file_does_not_exist_is_skipped(general: Folder) -> None:
    general.describe()
    general.variables.unlink()

    with pytest.raises(RequirementError, match=rf"'{general.variables}' does not exist.*apt-get"):
        find(general)


def test_error_for_an_invalid_descriptor_has_its_file_and_key_and_says_how_to_hide_it(
    general: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    for changes, key in (
        ({"features": "acpi-s3"}, "features"),
        ({"targets": [{"architecture": "x86_64"}]}, r"targets\.0\.machines"),
        ({"mapping": {"executable": {}}}, r"mapping\.device"),
    ):
        file = general.describe(**changes)

        with pytest.raises(
            BadInputError,
            match=rf"^{file}: key '{key}': .*'/config/qemu/firmware/60-edk2\.json'",
        ):
            find(general)


def test_error_has_the_path_of_a_descriptor_that_is_not_json(general: Folder) -> None:
    file = general.path / "50-edk2.json"
    for text in ("{", '{"features": [], "features": []}'):
        file.write_text(text)

        with pytest.raises(
            BadInputError,
            match=rf"^{file}: The firmware descriptor is invalid: (Expecting|.* twice)",
        ):
            find(general)


def test_error_has_the_path_of_an_unreadable_descriptor(general: Folder) -> None:
    file = general.path / "50-edk2.json"
    file.mkdir()
    with pytest.raises(BadInputError, match=rf"^{file}: .*Is a directory"):
        find(general)


def test_descriptor_folder_of_the_user_is_below_home_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/user")

    assert descriptor_folders()[-1] == Path("/home/user/.config/qemu/firmware")
