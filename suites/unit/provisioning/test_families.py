"""Families of distributions."""

from __future__ import annotations

from harness.provisioning.families import (
    DriverSource,
    Family,
    driver_source,
    family_of,
    os_release_fields,
    units_after_install,
)


def test_family_of_the_distribution_is_derived_from_os_release() -> None:
    rows = {
        "ID=debian\n": Family.DEBIAN,
        "NAME=x\nID=ubuntu\nID_LIKE=debian\n": Family.DEBIAN,
        "ID=linuxmint\nID_LIKE='ubuntu debian'\n": Family.DEBIAN,
        'ID="azurelinux"\n': Family.AZURE_LINUX,
        'ID="azurelinux" \n': Family.AZURE_LINUX,
        "ID=azurelinux\nVARIANT_ID=azurecontainerlinux\n": Family.OTHER,
        'ID=azurelinux\nVARIANT_ID="osguard"\n': Family.OTHER,
        "ID=mariner\n": Family.AZURE_LINUX,
        "ID=mariner\nID_LIKE=debian\n": Family.AZURE_LINUX,
        "ID=rhel\nID_LIKE=fedora\n": Family.OTHER,
        "ID=\nXID=debian\n": Family.OTHER,
        "debian\n": Family.OTHER,
        "": Family.OTHER,
    }

    assert {text: family_of(text) for text in rows} == rows


def test_os_release_values_may_contain_equal_signs_and_quotes() -> None:
    assert os_release_fields("URL=\"https://x/?a=b\"\nNAME='X'\nVARIANT=MUX\n\n# no field\n") == {
        "URL": "https://x/?a=b",
        "NAME": "X",
        "VARIANT": "MUX",
    }


def test_each_family_has_one_source_of_drivers() -> None:
    assert {family: driver_source(family) for family in Family} == {
        Family.DEBIAN: DriverSource.CONTAINER_IMAGE,
        Family.AZURE_LINUX: DriverSource.PACKAGES,
        Family.OTHER: DriverSource.NONE,
    }


def test_licence_daemon_is_started_only_for_grid_on_azure_linux() -> None:
    rows: dict[tuple[Family, str], tuple[str, ...]] = {
        (Family.AZURE_LINUX, "grid"): ("nvidia-gridd",),
        (Family.AZURE_LINUX, "grid-v20"): ("nvidia-gridd",),
        (Family.AZURE_LINUX, "cuda-lts"): (),
        (Family.DEBIAN, "grid"): (),
    }

    assert {row: units_after_install(*row) for row in rows} == rows
