"""The settings of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.machine.uefi_firmware import descriptor_folders
from harness.settings import (
    EvidenceMode,
    MachineDriver,
    Settings,
    accepted_licences,
    first_path,
    image_ids,
    is_ci,
    machine_driver,
    timeout_multiplier,
)
from harness.shared_store.credentials import read_basic


@pytest.mark.parametrize(
    ("value", "expected"),
    [("true", True), ("1", True), ("YES", True), ("", False), ("0", False), ("False", False)],
)
def test_run_is_in_ci_if_the_variable_ci_is_set_and_not_false(
    monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool
) -> None:
    monkeypatch.setenv("CI", value)
    assert is_ci() is expected
    monkeypatch.delenv("CI")
    assert not is_ci()


def test_error_for_an_unknown_word_mentions_its_source_and_the_known_words() -> None:
    with pytest.raises(
        BadInputError, match=r"--evidence: 'never' is not one of on-failure, always\."
    ):
        EvidenceMode.parse("never", source="--evidence")


def test_images_are_separated_by_commas() -> None:
    assert Settings().images == ("debian-12",)
    assert Settings(image="debian-12,debian-13").images == ("debian-12", "debian-13")


def test_image_ids_in_test_names_are_unique() -> None:
    files = ("/a/My.Node.qcow2", "https://h/b/my_node.raw#sha256=a/b.raw", "./my-node.img")

    assert image_ids(("debian-12", *files)) == ("debian-12", "my-node", "my-node-3", "my-node-4")


@pytest.mark.parametrize("value", ["", "debian-12,", "debian-12,debian-12"])
def test_list_of_images_with_a_gap_or_a_repetition_is_refused(value: str) -> None:
    with pytest.raises(BadInputError, match=f"--image: '{value}' is not a list of images"):
        Settings(image=value)


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [(None, "", 1.0), (None, "2.5", 2.5), ("0.1", "2.5", 0.1), ("1000", "", 1000.0)],
)
def test_timeout_multiplier_is_the_option_or_else_the_variable_or_else_1(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str, expected: float
) -> None:
    monkeypatch.setenv("HARNESS_TIMEOUT_MULTIPLIER", variable)

    assert timeout_multiplier(option) == expected


@pytest.mark.parametrize("value", ["0.09", "nan", "1000.1", "slow"])
def test_timeout_multiplier_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(
        BadInputError,
        match=rf"--timeout-multiplier or HARNESS_TIMEOUT_MULTIPLIER: '{value}' is not a factor",
    ):
        timeout_multiplier(value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("checkpoint_limit_mib", -1, "0 or more"),
        ("failure_checkpoint_limit_mib", -1, "0 or more"),
        ("bundle_limit_mib", -1, "0 or more"),
        ("bundle_limit_days", math.nan, "0 or more"),
        ("machine_keep_hours", math.nan, "a number of hours from 0 to 87600"),
        ("machine_keep_hours", math.inf, "a number of hours from 0 to 87600"),
    ],
)
def test_negative_or_invalid_limit_is_refused(name: str, value: float, expected: str) -> None:
    limits: dict[str, Any] = {name: 0}
    Settings(**limits)

    limits[name] = value
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(BadInputError, match=f"^{option}: {value} was given, but {expected}"):
        Settings(**limits)


def test_cache_is_in_the_folder_that_xdg_cache_home_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "my cache, 100%"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    settings = Settings()

    assert settings.cache == cache / "gpu-node-harness"
    assert settings.runs_folder.parent == settings.image_store.parent == settings.cache
    assert settings.checkpoint_store.parent == settings.cache


def test_relative_path_of_a_cache_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU runs in the folder of the machine, where a relative path has another meaning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = []
    for value in ("cache", " ", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        found.append(Settings().cache.parent)

    assert found == [tmp_path / "cache", *[tmp_path / "home/.cache"] * 2]


def test_path_below_an_unknown_home_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may run as a user that /etc/passwd does not list, without HOME."""

    def unknown(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    with pytest.raises(BadInputError, match=r"^XDG_CACHE_HOME: The home folder in '~/\.cache' is"):
        Settings()
    with pytest.raises(
        BadInputError, match=r"^HARNESS_X: The home folder in '~ann/x' is not known"
    ):
        first_path("~ann/x", "HARNESS_X")
    assert read_basic("r.example") is None
    assert descriptor_folders() == (Path("/usr/share/qemu/firmware"), Path("/etc/qemu/firmware"))


def test_licences_are_accepted_by_option_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_ACCEPT_LICENCE", "one, two five,")

    assert accepted_licences(["three", "four,one"]) == {
        *("one", "two", "three", "four", "five"),
    }


def test_option_overrides_environment_and_environment_overrides_ini_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_MACHINE_DRIVER", "libvirt")
    assert machine_driver("node", "qemu") is MachineDriver.NODE
    assert machine_driver(None, "qemu") is MachineDriver.LIBVIRT
    monkeypatch.delenv("HARNESS_MACHINE_DRIVER")
    assert machine_driver(None, "node") is MachineDriver.NODE
    assert machine_driver(None, "") is MachineDriver.QEMU


def test_error_for_an_unknown_driver_mentions_the_known_drivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_MACHINE_DRIVER", "xen")
    with pytest.raises(
        BadInputError, match=r"--machine-driver: 'xen' is not one of qemu, libvirt, node\."
    ):
        machine_driver(None, "")


def test_uri_is_refused_if_the_driver_takes_no_uri() -> None:
    with pytest.raises(BadInputError, match=r"'qemu:///system'.*--machine-driver=libvirt"):
        Settings(machine_uri="qemu:///system")
